#include "report/formulas.h"

#include <algorithm>

namespace gptrain::inline report {
Flops model_flops_formula(const ModelConfig& m, int64_t sequences) {
  const Flops tokens = wide(sequences) * wide(m.sequence_length);
  const Flops h = wide(m.hidden_size);
  const Flops q = wide(m.q_size());
  const Flops kv = wide(m.kv_size());
  const Flops layers = wide(m.num_layers);
  const Flops ffn_products = is_gated(m.activation) ? 3 : 2;
  const Flops attention_projections = h * (q + 2 * kv) + q * h;
  const Flops ffn = ffn_products * h * wide(m.ffn_hidden_size);
  const Flops head = h * wide(m.vocab_size);
  const Flops s = wide(m.sequence_length), window = wide(m.attention_window);
  const bool is_banded = m.attention_window > 0 && m.attention_window < m.sequence_length;
  const Flops twice_attended_pairs = is_banded ? window * (2 * s - window + 1) : s * s;
  return 6 * tokens * (layers * (attention_projections + ffn) + head) +
         6 * layers * q * wide(sequences) * twice_attended_pairs;
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
