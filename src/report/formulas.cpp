#include "report/formulas.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "model/spec/layer_kinds.h"

namespace gptrain::inline report {
Flops model_flops_formula(const ModelConfig& m, int64_t sequences) {
  const Flops tokens = wide(sequences) * wide(m.sequence_length);
  const Flops h = wide(m.hidden_size);
  const Flops q = wide(m.q_size());
  const Flops kv = wide(m.kv_size());
  const Flops layers = wide(m.num_layers);
  const Flops attention_projections = h * (q + 2 * kv) + q * h;
  const Flops head = h * wide(m.vocab_size);
  const LayerKinds kinds = layer_kinds(m);
  std::vector<Flops> pairs_of_kinds;
  for (const LayerKind& kind : kinds.kinds)
    pairs_of_kinds.push_back(kind.attention.twice_counted_pairs(m.sequence_length, m.num_heads));
  Flops pairs = 0, ffns = 0;
  for (const size_t kind : kinds.of_layers) {
    pairs += pairs_of_kinds[kind];
    const FfnKind& ffn = kinds.kinds[kind].ffn;
    ffns += wide(m.ffn_matrices(ffn)) * h * wide(m.active_ffn_width(ffn));
    if (ffn.is_routed) ffns += h * wide(m.moe.experts + (m.moe.shared_gate == SharedGate::sigmoid ? 1 : 0));  // router
  }
  return 6 * tokens * (layers * attention_projections + ffns + head) + 6 * wide(m.head_size) * wide(sequences) * pairs;
}

Flops reference_flops_formula(const ModelConfig& m, int64_t sequences) {
  const Flops tokens = wide(sequences) * wide(m.sequence_length);
  const Flops h = wide(m.hidden_size);
  const Flops layers = wide(m.num_layers);
  return 96 * tokens * layers * h * h + 16 * tokens * wide(m.sequence_length) * layers * h +
         6 * tokens * h * wide(m.vocab_size);
}

int64_t published_block_activation_bytes(const ModelConfig& m, int64_t micro_batch) {
  return 32 * m.sequence_length * micro_batch * m.hidden_size;
}

int64_t active_parameters(const ModelConfig& m, int64_t all) {
  const int64_t of_expert = (is_gated(m.activation) ? 3 : 2) * m.hidden_size * m.moe.ffn_hidden_size;
  for (int64_t layer = 0; layer < m.num_layers; ++layer)
    if (m.moe.is_at(layer)) all -= (m.moe.experts - m.moe.top_k) * of_expert;
  return all;
}

std::string to_string(Flops flops) {
  std::string digits;
  do {
    digits.push_back(static_cast<char>('0' + static_cast<int>(flops % 10)));
    flops /= 10;
  } while (flops > 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

}  // namespace gptrain::report
