// The choices of memory.recompute = "optimal" as text, and the plot of time against memory.
#pragma once

#include <string>

#include "planner/recompute_forecast.h"

namespace gptrain {

std::string recompute_text(const RecomputeForecast& forecast);
// The plot of time against memory, as an HTML page of its own.
std::string recompute_page(const RecomputeForecast& forecast, const std::string& title);

}  // namespace gptrain
