// Layers with experts of transformers' classes.
#pragma once

#include <cstdint>
#include <optional>

#include "config/json_text.h"

namespace gptrain::inline checkpoint {

// Layers first, first + every, ... have experts (MoeConfig).
struct ExpertLayers {
  int64_t first, every;
};

// Returns the layers with experts of a model whose config.json has these decoder_sparse_step and mlp_only_layers;
// nothing if there are none, or if they do not repeat.
std::optional<ExpertLayers> hf_expert_layers(int64_t layers, int64_t sparse_step, const Json& dense_layers);

// Adds the settings of Qwen2-MoE's shared experts, which have `width` hidden features together, to model.moe.
void hf_add_shared_experts(int64_t width, Json& moe);

}  // namespace gptrain::checkpoint
