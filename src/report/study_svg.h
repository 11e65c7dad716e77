// Pictures of studies, each an SVG file of its own in light and dark.
#pragma once

#include <string>

#include "planner/study.h"

namespace gptrain::inline report {

// Returns a picture of a sweep, of scaling or of links: lines of speed over the last axis, or for pairs of values a map
// of their peak memory and step. THROWS Error(usage) if a line would have values that are not numbers above 0.
std::string study_svg(const Study& study);

}  // namespace gptrain::report
