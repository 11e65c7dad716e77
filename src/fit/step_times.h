// What a step takes by usual rates (fit/nominal_times.h): of use as a ratio of two settings' times, which a run and a
// dry run for its device then agree on.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"

namespace gptrain {

// The passes of a stage's first rank one after another, with copies of activations beside them, and the update. Without
// waits for other stages, and without gathers and reductions, which passes mostly hide.
double nominal_step_seconds(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage);

}  // namespace gptrain
