// The time of a step at nominal rates (fit/nominal_times.h). Use it as the ratio of two settings' times: a run and a
// dry run for its device compute the same ratio.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// Returns the seconds of a step of the stage's first rank: its passes one after another, with copies of activations
// beside them, and the update. Leaves out waits for other stages, and gathers and reductions, which mostly run beside
// passes.
double nominal_step_seconds(const PlanCase& run, int32_t stage);

}  // namespace gptrain::fit
