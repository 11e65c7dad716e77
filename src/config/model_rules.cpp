#include <fmt/format.h>

#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class ModelRules : Rules {
 public:
  explicit ModelRules(const RuleContext& context) : Rules(context) {}

  void run() {
    check_dropout();
    settle_sizes();
    check_attention_window();
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

  void settle_sizes() {
    ModelConfig& model = config_.model;
    const bool has_kv_heads = model.num_kv_heads > 0;
    if (!has_kv_heads) model.num_kv_heads = model.num_heads;
    if (model.ffn_hidden_size == 0) {
      model.ffn_hidden_size =
          is_gated(model.activation) ? (8 * model.hidden_size + 191) / 192 * 64 : 4 * model.hidden_size;
    }
    if (!is_given("model.qkv_bias")) model.qkv_bias = model.bias;
    settle_heads(has_kv_heads);
    check_rope_scaling();
  }

  void settle_heads(bool has_kv_heads) {
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
    if (!sound({"model.rope_scaling", "model.rope_low_freq_factor", "model.rope_high_freq_factor"})) return;
    if (model.rope_scaling != RopeScaling::llama3 || model.rope_low_freq_factor < model.rope_high_freq_factor) return;
    fault("model.rope_high_freq_factor",
          fmt::format("must be greater than model.rope_low_freq_factor = {}", model.rope_low_freq_factor), "4");
  }

  void check_attention_window() {
    const int64_t length = config_.model.sequence_length;
    if (!sound({"model.attention_window", "model.sequence_length"}) || config_.model.attention_window <= length) return;
    fault("model.attention_window", fmt::format("must be at most model.sequence_length = {}", length),
          fmt::format("{}", length));
  }
};

}  // namespace

void settle_model(const RuleContext& context) { ModelRules(context).run(); }

}  // namespace gptrain::config
