#include "model/spec/layer_kinds.h"

#include <algorithm>
#include <utility>

namespace gptrain::inline spec {

std::vector<int64_t> LayerKinds::counts(int64_t first, int64_t count) const {
  std::vector<int64_t> sums(kinds.size());
  for (int64_t layer = first; layer < first + count; ++layer) ++sums[of(layer)];
  return sums;
}

std::vector<int64_t> LayerKinds::by_parameters(const std::vector<int64_t>& counts) const {
  std::vector<int64_t> sums(kinds.size());
  for (size_t kind = 0; kind < kinds.size(); ++kind) sums[alike[kind]] += counts[kind];
  return sums;
}

LayerKinds layer_kinds(const ModelConfig& model) {
  LayerKinds result;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const LayerKind kind{.attention = model.attention(layer), .rotates = model.rotates(layer), .ffn = model.ffn(layer)};
    const auto found = std::find(result.kinds.begin(), result.kinds.end(), kind);
    result.of_layers.push_back(static_cast<size_t>(found - result.kinds.begin()));
    if (found == result.kinds.end()) result.kinds.push_back(kind);
  }
  for (const LayerKind& kind : result.kinds) {
    const auto found = std::find_if(result.kinds.begin(), result.kinds.end(),
                                    [&](const LayerKind& other) { return other.ffn == kind.ffn; });
    result.alike.push_back(static_cast<size_t>(found - result.kinds.begin()));
  }
  return result;
}

ModelConfig with_layers(ModelConfig model, const LayerKind& kind, int64_t count) {
  model.num_layers = count;
  model.attention_pattern = {kind.attention};
  if (kind.ffn.is_routed) {
    model.moe.first = 0;
    model.moe.every = 1;
  } else {
    model.moe = {};
    model.ffn_pattern = {kind.ffn};
  }
  model.positions_pattern = {kind.rotates ? LayerPositions::rope : LayerPositions::none};
  // The angles of rotations have no influence on costs.
  model.rope_theta_pattern.clear();
  model.rope_scaling_pattern.clear();
  return model;
}

double forward_flops(const ModelConfig& model, const LayerKind& kind) {
  const auto h = static_cast<double>(model.hidden_size), q = static_cast<double>(model.q_size());
  const auto ffn_matrices = static_cast<double>(model.ffn_matrices(kind.ffn));
  const auto ffn_width = static_cast<double>(model.active_ffn_width(kind.ffn));
  const double router = kind.ffn.is_routed ? h * static_cast<double>(model.moe.experts) : 0;
  const double matrices = 2 * h * (q + static_cast<double>(model.kv_size())) + ffn_matrices * h * ffn_width + router;
  const auto pairs = static_cast<double>(kind.attention.twice_counted_pairs(model.sequence_length, model.num_heads));
  return 2 * matrices +
         2 * q * (pairs / (static_cast<double>(model.num_heads) * static_cast<double>(model.sequence_length)));
}

bool attention_outweighs_ffn(const ModelConfig& model) {
  constexpr double slowness_of_attention = 2;
  const LayerKinds kinds = layer_kinds(model);
  double attention = 0, ffn = 0;  // multiply-adds of a sequence
  for (const size_t of_layer : kinds.of_layers) {
    const LayerKind& kind = kinds.kinds[of_layer];
    attention += static_cast<double>(model.head_size) *
                 static_cast<double>(kind.attention.twice_counted_pairs(model.sequence_length, model.num_heads));
    ffn += static_cast<double>(model.sequence_length) * static_cast<double>(model.ffn_matrices(kind.ffn) - 1) *
           static_cast<double>(model.hidden_size) * static_cast<double>(model.active_ffn_width(kind.ffn));
  }
  return slowness_of_attention * attention > ffn;
}

}  // namespace gptrain::spec
