// The timeline of a pipeline's step as a page: a row for each stage, a bar for each pass.
#pragma once

#include <string>

#include "planner/planned_pipeline.h"

namespace gptrain {

// One HTML file with one SVG, without scripts. Bars that would be too narrow to be seen are joined. has_rates: whether the
// target's rates are known.
std::string timeline_page(const PlannedPipeline& pipeline, const std::string& title, bool has_rates);

}  // namespace gptrain
