// The dry run as an HTML page.
#pragma once

#include <string>

#include "planner/dry_run.h"

namespace gptrain::inline report {

// Returns a page with the main figures, then the tables of dry_run_text.
std::string dry_run_page(const DryRun& run, const std::string& title);

}  // namespace gptrain::report
