// Whether ranks that hold the same parameters still do.
#pragma once

#include <cstdint>

#include "train/run_context.h"
#include "step/training_step.h"

namespace gptrain {

// A fault of memory or network that no checksum has caught leaves ranks that hold the same weights with different ones.
// Compares checksums of them after `after_step`: Error(device) on all ranks where they differ, with the ranks and hosts
// on rank 0. Collective over the world, while no step is under way.
void compare_replicas(const RunContext& context, const TrainingStep& step, int64_t after_step);

}  // namespace gptrain
