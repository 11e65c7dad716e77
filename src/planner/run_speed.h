// Speed of a run, from the time of a step.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"
#include "step/step_log.h"

namespace gptrain::inline planner {

struct RunSpeed {
  double tokens_per_second, tokens_per_gpu;
  double model_flops_per_gpu, hardware_flops_per_gpu;  // FLOP/s
  double mfu, hfu;   // FLOP/s per GPU over the target's full rate for products in the step's dtype
  double gpu_hours;  // length of the run without failures
};
// `ops`: the ops of one step, summed over all ranks.
RunSpeed run_speed(const StepConfig& config, int64_t steps, const Target& target, const OpTable& ops,
                   int64_t world_size, double step_seconds);

}  // namespace gptrain::planner
