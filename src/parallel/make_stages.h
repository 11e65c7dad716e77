// Assigns a config's layers to the stages of its pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "schedule/stages.h"

namespace gptrain::inline parallel {

// Returns the stages as seen by `stage`, for programs of `micro_batches`. The embedding is in the first chunk and the
// head in the last. Layers that the config does not place are spread evenly if every chunk then has as many of each
// kind, otherwise so that the slowest chunk takes the least time, estimated by the FLOPs of products for each token:
// 2 h V for the head, and forward_flops for a layer. `backward_recomputes`: see StepChoices.
Stages make_stages(const StepConfig& config, int64_t stage, int64_t micro_batches, bool backward_recomputes);

// Returns the number of layers of each chunk, in forward order.
std::vector<int64_t> layers_of_chunks(const StepConfig& config);
// Returns the numbers of layers that balance the chunks' times, ignoring parallel.layers_per_stage and even division.
std::vector<int64_t> balanced_layers(const StepConfig& config);

}  // namespace gptrain::parallel
