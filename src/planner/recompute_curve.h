// The least time of recomputation as a function of the memory for activations.
#pragma once

#include <cstdint>

#include "fit/plan_world.h"
#include "machine/event_times.h"
#include "planner/recompute_forecast.h"

namespace gptrain::inline planner {

// REQUIRES: memory.recompute is "optimal", and `plan` is the config's. `machine`: null if its rates are not known;
// steps then have no times.
RecomputeForecast forecast_recomputation(const PlanCase& run, const Machine* machine, const WorldPlan& plan);

}  // namespace gptrain::planner
