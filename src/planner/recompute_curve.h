// What the least time for the memory of activations is, for reports.
#pragma once

#include <cstdint>

#include "fit/plan_world.h"
#include "machine/event_times.h"
#include "planner/recompute_forecast.h"

namespace gptrain {

// Of a config whose memory.recompute is "optimal", and of its plan. `machine`: null where its rates are not known.
RecomputeForecast forecast_recomputation(const RunConfig& config, const Target& target, const Machine* machine,
                                         int64_t world_size, const WorldPlan& plan);

}  // namespace gptrain
