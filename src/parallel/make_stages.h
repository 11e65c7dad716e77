// Which layers each stage of a config's pipeline has.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "schedule/stages.h"

namespace gptrain {

// `stage` of the pipeline, for programs of `micro_batches`. The embedding is in the first chunk and the head in the
// last. Layers that the config does not place are spread so that the slowest chunk takes the least time, reckoned by the
// FLOPs of products: the head counts as 2 h V, a layer as 2 for each element of its matrices and 2 T h for attention.
// `backward_runs_again`: StepChoices has it; schedules order passes by it.
Stages make_stages(const RunConfig& config, int64_t stage, int64_t micro_batches, bool backward_runs_again);

// Layers of each chunk, in forward order.
std::vector<int64_t> layers_of_chunks(const RunConfig& config);
// As they would be spread if the config placed none and they did not divide.
std::vector<int64_t> balanced_layers(const RunConfig& config);

}  // namespace gptrain
