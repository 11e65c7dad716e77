#include <algorithm>
#include <fmt/format.h>

#include "base/json.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class ModelRules : Rules {
 public:
  explicit ModelRules(const RuleContext& context) : Rules(context) {}

  void run() {
    check_dropout();
    resolve_sizes();
    check_attention_pattern();
    check_attention_scale();
    check_rope_patterns();
    check_norm_offset();
  }

 private:
  void check_dropout() {
    if (!is_given("model.dropout")) return;
    for (const char* path : {"model.residual_dropout", "model.attention_dropout"}) {
      if (is_given(path) && sound({path, "model.dropout"})) {
        fault(path, "is also set by model.dropout", "leaving one of them out");
      }
    }
  }

  void resolve_sizes() {
    ModelConfig& model = config_.model;
    const bool has_kv_heads = model.num_kv_heads > 0;
    if (!has_kv_heads) model.num_kv_heads = model.num_heads;
    if (model.ffn_hidden_size == 0) {
      model.ffn_hidden_size =
          is_gated(model.activation) ? (8 * model.hidden_size + 191) / 192 * 64 : 4 * model.hidden_size;
    }
    if (!is_given("model.qkv_bias")) model.qkv_bias = model.bias;
    resolve_heads(has_kv_heads);
    check_rope_scaling();
  }

  void resolve_heads(bool has_kv_heads) {
    ModelConfig& model = config_.model;
    if (!sound({"model.hidden_size", "model.num_heads", "model.head_size", "model.positions"})) return;
    if (model.head_size > 0) {
      if (model.positions == PositionKind::rope && model.head_size % 2 != 0) {
        fault("model.head_size", "must be even for model.positions = rope",
              nearest_integers(model.head_size, 1, 1 << 16, [](int64_t size) { return size % 2 == 0; }));
      }
    } else {
      derive_head_size(has_kv_heads);
    }
    if (has_kv_heads && sound({"model.num_kv_heads", "model.num_heads"}) && model.num_heads % model.num_kv_heads != 0) {
      fault("model.num_kv_heads", fmt::format("must divide model.num_heads = {}", model.num_heads),
            nearest_integers(model.num_kv_heads, 1, model.num_heads,
                             [&](int64_t heads) { return model.num_heads % heads == 0; }));
    }
  }

  void derive_head_size(bool has_kv_heads) {
    ModelConfig& model = config_.model;
    model.head_size = model.hidden_size / model.num_heads;
    const auto divides_hidden = [&](int64_t heads) { return model.hidden_size % heads == 0; };
    const bool rope = model.positions == PositionKind::rope;
    const auto even_head_size = [&](int64_t heads) { return !rope || model.hidden_size / heads % 2 == 0; };
    const bool kv_heads_sound = has_kv_heads && sound({"model.num_kv_heads"});
    const std::string nearest = nearest_integers(model.num_heads, 1, model.hidden_size, [&](int64_t heads) {
      return divides_hidden(heads) && even_head_size(heads) && (!kv_heads_sound || heads % model.num_kv_heads == 0);
    });
    if (!divides_hidden(model.num_heads)) {
      fault("model.num_heads", fmt::format("must divide model.hidden_size = {}", model.hidden_size), nearest);
    } else if (!even_head_size(model.num_heads)) {
      fault("model.num_heads",
            fmt::format("must leave an even head size for model.positions = rope, not {} / {} = {}", model.hidden_size,
                        model.num_heads, model.head_size),
            nearest);
    }
  }

  void check_rope_scaling() {
    const ModelConfig& model = config_.model;
    if (!sound({"model.rope_scaling", "model.rope_scaling_pattern", "model.rope_low_freq_factor",
                "model.rope_high_freq_factor"}))
      return;
    if (!model.scales_rope(RopeScaling::llama3) || model.rope_low_freq_factor < model.rope_high_freq_factor) return;
    fault("model.rope_high_freq_factor",
          fmt::format("must be greater than model.rope_low_freq_factor = {}", model.rope_low_freq_factor), "4");
  }

  void check_attention_pattern() {
    const ModelConfig& model = config_.model;
    constexpr const char *list = "model.attention_pattern", *window = "model.attention_window";
    if (is_given(list) && is_given(window) && sound({list, window})) {
      faults_.add(window, fmt::format("{}", model.attention_pattern.front().width),
                  "is also set by model.attention_pattern", "leaving one of them out");
      return;
    }
    if (!sound({list, window, "model.sequence_length"})) return;
    for (size_t i = 0; i < model.attention_pattern.size(); ++i) {
      const std::string path = is_given(window) ? window : fmt::format("{}[{}]", list, i);
      check_sizes(path, model.attention_pattern[i]);
      check_column_sets(path, model.attention_pattern[i]);
    }
  }

  void check_sizes(const std::string& path, AttentionPattern pattern) {
    const int64_t length = config_.model.sequence_length;
    if (std::max(pattern.width, pattern.global) <= length) return;
    const auto show = [&](const AttentionPattern& shown) {
      return path == "model.attention_window" ? fmt::format("{}", shown.width)
                                              : fmt::format("\"{}\"", attention_pattern_word(shown));
    };
    const std::string value = show(pattern);
    pattern.width = std::min(pattern.width, length);
    pattern.global = std::min(pattern.global, length);
    pattern.columns = std::min(pattern.columns, pattern.width / pattern.column_sets);
    faults_.add(path, value, fmt::format("must be at most model.sequence_length = {}", length), show(pattern));
  }

  // Heads take turns with the sets of columns. The heads of a rank, and the heads that share keys, must have all
  // sets equally often.
  void check_column_sets(const std::string& path, const AttentionPattern& pattern) {
    const ModelConfig& model = config_.model;
    const int64_t sets = pattern.column_sets, tensor = config_.parallel.tensor, context = config_.parallel.context;
    if (sets == 1 || !sound({"model.num_heads", "model.num_kv_heads", "parallel.tensor", "parallel.context"})) return;
    const auto refuse = [&](int64_t heads, const std::string& what) {
      AttentionPattern nearest = pattern;
      while (heads % nearest.column_sets != 0) --nearest.column_sets;
      faults_.add(path, fmt::format("\"{}\"", attention_pattern_word(pattern)),
                  fmt::format("V must divide the {} {}", heads, what),
                  fmt::format("\"{}\"", attention_pattern_word(nearest)));
    };
    if (model.num_heads % (tensor * context) != 0 || model.num_heads % model.num_kv_heads != 0)
      return;  // reported elsewhere
    const int64_t of_rank = model.num_heads / tensor / context, of_keys = model.num_heads / model.num_kv_heads;
    if (of_rank % sets != 0) {
      refuse(of_rank, context > 1  ? "heads of a rank of parallel.tensor and parallel.context"
                      : tensor > 1 ? "heads of a rank of parallel.tensor"
                                   : "heads of model.num_heads");
    } else if (of_keys > 1 && of_keys % sets != 0) {
      refuse(of_keys, "heads that share a head of model.num_kv_heads");
    }
  }

  void check_attention_scale() {
    const ModelConfig& model = config_.model;
    if (model.attention_scale > 0 && model.mup > 0 && sound({"model.attention_scale", "model.mup"}))
      fault("model.attention_scale", "cannot be combined with model.mup, which sets the scale", "0");
  }

  // A list that is given for the words of attention_pattern must have one element for each.
  void check_rope_patterns() {
    const ModelConfig& model = config_.model;
    const size_t words = model.attention_pattern.size();
    const auto check = [&](const char* path, size_t elements) {
      if (elements == 0 || elements == words || !sound({path, "model.attention_pattern"})) return;
      Json nearest = find_field(path)->get(config_);
      while (nearest.size() > words) nearest.erase(nearest.size() - 1);
      while (nearest.size() < words) nearest.push_back(nearest.back());
      fault(path, fmt::format("must have one element for each of {} words of model.attention_pattern", words),
            json_text(nearest));
    };
    check("model.rope_theta_pattern", model.rope_theta_pattern.size());
    check("model.rope_scaling_pattern", model.rope_scaling_pattern.size());
  }

  void check_norm_offset() {
    const ModelConfig& model = config_.model;
    if (model.norm_offset && model.mup > 0 && sound({"model.norm_offset", "model.mup"}))
      fault("model.norm_offset", "cannot be combined with model.mup, which sets the gain of the last norm", "false");
  }
};

}  // namespace

void resolve_model(const RuleContext& context) { ModelRules(context).run(); }

}  // namespace gptrain::config
