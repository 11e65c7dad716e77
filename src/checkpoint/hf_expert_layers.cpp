#include "checkpoint/hf_expert_layers.h"

#include <algorithm>
#include <vector>

namespace gptrain::inline checkpoint {

std::optional<ExpertLayers> hf_expert_layers(int64_t layers, int64_t sparse_step, const Json& dense_layers) {
  std::vector<int64_t> routed;
  for (int64_t layer = 0; layer < layers && sparse_step > 0; ++layer) {
    const bool is_dense = dense_layers.is_array() &&
                          std::find(dense_layers.begin(), dense_layers.end(), Json(layer)) != dense_layers.end();
    if (!is_dense && (layer + 1) % sparse_step == 0) routed.push_back(layer);
  }
  if (routed.empty()) return std::nullopt;
  const int64_t every = routed.size() > 1 ? routed[1] - routed[0] : layers;
  std::vector<int64_t> regular;
  for (int64_t layer = routed[0]; layer < layers; layer += every) regular.push_back(layer);
  if (regular != routed) return std::nullopt;
  return ExpertLayers{routed[0], every};
}

void hf_add_shared_experts(int64_t width, Json& moe) {
  moe["shared"] = 1;
  moe["shared_gate"] = "sigmoid";
  moe["shared_ffn_hidden_size"] = width;
}

}  // namespace gptrain::checkpoint
