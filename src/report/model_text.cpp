#include "report/model_text.h"

#include <cstdint>
#include <fmt/format.h>
#include <optional>
#include <vector>

#include "base/attention_pattern.h"
#include "config/faults.h"
#include "model/spec/shard.h"

namespace gptrain::inline report {
namespace {

// Returns the window of a model whose layers all have the same; 0 if their attention is dense. Otherwise returns
// nothing.
std::optional<int64_t> window_of_layers(const ModelConfig& model) {
  const std::vector<AttentionPattern>& patterns = model.attention_pattern;
  if (patterns.size() > 1 || !patterns.front().one_run()) return std::nullopt;
  return patterns.front().width;
}

// Returns ", attention dense, band:256 in turns", or an empty text for dense attention in all layers.
std::string pattern_text(const ModelConfig& model) {
  if (const auto window = window_of_layers(model))
    return *window == 0 ? "" : fmt::format(" with an attention window of {}", *window);
  std::vector<std::string> words;
  for (const AttentionPattern& pattern : model.attention_pattern) words.push_back(attention_pattern_word(pattern));
  return fmt::format(", attention {}{}", join(words, ", "), words.size() > 1 ? " in turns" : "");
}

}  // namespace

std::string model_line(const ModelConfig& m, int64_t tensor_size) {
  const int64_t padded = vocabulary_rows(m.vocab_size, tensor_size) * tensor_size;
  std::string line = fmt::format("{} layers, hidden {}, ffn {}, {} heads", m.num_layers, m.hidden_size,
                                 m.ffn_hidden_size, m.num_heads);
  if (m.q_size() != m.hidden_size) line += fmt::format(" of {}", m.head_size);
  if (m.num_kv_heads != m.num_heads) line += fmt::format(" ({} for keys and values)", m.num_kv_heads);
  if (m.moe.is_on()) {
    line += fmt::format(", {} experts of {}, {} for each token", m.moe.experts, m.moe.ffn_hidden_size, m.moe.top_k);
    if (m.moe.first > 0 || m.moe.every > 1)
      line += fmt::format(" in blocks {}, {}, ...", m.moe.first, m.moe.first + m.moe.every);
  }
  line += fmt::format(", sequence {}", m.sequence_length);
  line += pattern_text(m);
  line += fmt::format(", vocabulary {}", m.vocab_size);
  if (padded != m.vocab_size) line += fmt::format(" (stored as {})", padded);
  return line;
}

std::string_view pairs_text(const ModelConfig& model) {
  const auto window = window_of_layers(model);
  return !window ? "attended pairs" : *window > 0 ? "causal window" : "causal half";
}

}  // namespace gptrain::report
