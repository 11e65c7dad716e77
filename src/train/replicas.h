// Checks that ranks that should hold the same weights do.
#pragma once

#include <cstdint>

#include "step/training_step.h"
#include "train/run_context.h"

namespace gptrain::inline train {

// Compares checksums of the weights after step `after_step`. Checksums differ after a fault of memory or
// network that nothing else has noticed. THROWS Error(device) on all ranks if checksums differ; rank 0's message names
// the ranks and hosts. Collective over the world. REQUIRES: no step is running.
void compare_replicas(const RunContext& context, const TrainingStep& step, int64_t after_step);

}  // namespace gptrain::train
