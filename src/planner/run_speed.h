// What follows from the time of a step for the whole run.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"
#include "step/step_log.h"

namespace gptrain {

struct RunSpeed {
  double tokens_per_second, tokens_per_gpu;
  double model_flops_per_gpu, hardware_flops_per_gpu;  // in a second
  double mfu, hfu;                                     // of the rate of the step's 16-bit or f32 products
  double gpu_hours;                                    // of the run, without failures
};
// `ops`: of one step, all ranks.
RunSpeed run_speed(const RunConfig& config, const Target& target, const OpTable& ops, int64_t world_size,
                   double step_seconds);

}  // namespace gptrain
