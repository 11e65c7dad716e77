// Reports on memory.recompute = "optimal".
#pragma once

#include <string>

#include "planner/recompute_forecast.h"

namespace gptrain::inline report {

// Returns the choices, and a table of time against memory.
std::string recompute_text(const RecomputeForecast& forecast);
// Returns an HTML page with a plot of time against memory.
std::string recompute_page(const RecomputeForecast& forecast, const std::string& title);

}  // namespace gptrain::report
