// The steps of optimizer.type = zero-one-adam (0/1 Adam, arXiv 2202.06009).
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace gptrain::inline config {

enum class ZeroOneStep : uint8_t {
  variance,  // sums gradients in f32 and updates the variances
  moment,    // sums gradients as signs
  local,     // sums nothing but tables
  exchange,  // as local; then all ranks find the same weights and momenta
};

// Returns the kind of the step after `done` steps of a run of `steps`. Until freeze_step, variances are updated in
// steps whose number is a multiple of a distance, which is 1 and doubles after every variance_scaler such steps. Later,
// ranks exchange in steps whose number is a multiple of zero_one_distance, and in the last step.
ZeroOneStep zero_one_step(const OptimizerConfig& optimizer, int64_t done, int64_t steps);

// Returns the distance of exchanges in a step after `local` steps since freeze_step: 1, doubled after every
// local_scaler steps, up to local_most.
int64_t zero_one_distance(const OptimizerConfig& optimizer, int64_t local);

// Numbers of a run's steps by their kinds.
struct ZeroOneCounts {
  int64_t variance = 0, moment = 0, local = 0, exchange = 0;
};
ZeroOneCounts count_zero_one_steps(const OptimizerConfig& optimizer, int64_t steps);

}  // namespace gptrain::config
