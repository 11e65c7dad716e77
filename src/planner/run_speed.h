// Speed of a run, from the time of a step.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"
#include "step/step_log.h"

namespace gptrain::inline planner {

struct RunSpeed {
  double tokens_per_second, tokens_per_gpu;            // both per second: of all ranks, and of one
  double model_flops_per_gpu, hardware_flops_per_gpu;  // FLOP/s
  double mfu, hfu;   // FLOP/s per GPU over the target's full rate in f32 or, for 16 bits and FP8, in bf16
  double gpu_hours;  // hours of the run without failures, times the ranks
};
// RETURNS the speed of a run of `steps` steps. `ops`: the ops of one step, summed over all ranks.
RunSpeed run_speed(const StepConfig& config, int64_t steps, const Target& target, const OpTable& ops,
                   int64_t world_size, double step_seconds);

}  // namespace gptrain::planner
