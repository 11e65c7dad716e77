// The part of a dry run about optimizer state in host memory or on disk: the bytes that a step moves over each link,
// and the bandwidth that would hide them.
#pragma once

#include <string>

#include "base/json.h"
#include "planner/dry_run.h"

namespace gptrain::inline report {

// Returns a section of the text; empty if all optimizer state is on the device, or the machine's rates
// are not known.
std::string links_section(const DryRun& input);
nlohmann::ordered_json links_json(const DryRun& input);

}  // namespace gptrain::report
