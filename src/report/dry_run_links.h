// The part of a dry run about state that is away: bytes of a step by link, and the bandwidths that it asks for.
#pragma once

#include <string>

#include "base/json.h"
#include "planner/dry_run.h"

namespace gptrain::inline report {

// Returns a section of the text; empty if no optimizer state is away or the machine's rates are not known.
std::string links_section(const DryRun& input);
nlohmann::ordered_json links_json(const DryRun& input);

}  // namespace gptrain::report
