// The timeline of a pipeline's step as an HTML page: a row for each stage, a bar for each pass.
#pragma once

#include <string>

#include "planner/planned_pipeline.h"

namespace gptrain::inline report {

// Returns one HTML file with one SVG, without scripts. Bars too narrow to be seen are joined. `has_rates`: whether the
// target's rates are known; otherwise the page says that bars show order only.
std::string timeline_page(const PlannedPipeline& pipeline, const std::string& title, bool has_rates);

}  // namespace gptrain::report
