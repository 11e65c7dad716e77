#include <algorithm>
#include <fmt/format.h>

#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class ContextRules : Rules {
 public:
  explicit ContextRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({path}) || ranks() == 1) return;
    check_sizes();
    const std::string setting = fmt::format("{} = {}", path, ranks());
    if (sound({"model.attention_sinks"}) && config_.model.attention_sinks)
      fault("model.attention_sinks",
            fmt::format("cannot be combined with {}: a rank has only some heads' sinks", setting), "false");
    if (sound({"memory.saved_inputs"}) && config_.memory.saved_inputs == 8)
      fault("memory.saved_inputs",
            fmt::format("cannot be combined with {}, where attention's output is kept by heads as well", setting),
            "16");
    if (sound({"memory.linear_projection"}) && config_.memory.linear_projection.is_on())
      fault("memory.linear_projection",
            fmt::format("projects whole sequences, but with {} a rank has only a part of each", setting), "{}");
  }

 private:
  static constexpr const char* path = "parallel.context";

  int64_t ranks() const { return config_.parallel.context; }

  // Checks that tokens and heads divide evenly over the ranks.
  void check_sizes() {
    if (!sound({"parallel.tensor", "model.num_heads", "model.num_kv_heads", "model.sequence_length"})) return;
    const ModelConfig& model = config_.model;
    const int64_t tensor = config_.parallel.tensor;
    if (model.num_heads % tensor != 0) return;  // reported elsewhere
    const int64_t heads = model.num_heads / tensor, kv_heads = std::max<int64_t>(1, model.num_kv_heads / tensor);
    const auto divides_tokens = [&](int64_t n) { return model.sequence_length % n == 0; };
    const auto divides_heads = [&](int64_t n) { return heads % n == 0; };
    const auto divides_kv_heads = [&](int64_t n) { return kv_heads % n == 0 || n % kv_heads == 0; };
    const std::string nearest = nearest_integers(
        ranks(), 1, heads, [&](int64_t n) { return divides_tokens(n) && divides_heads(n) && divides_kv_heads(n); });
    const std::string over = tensor > 1 ? fmt::format(" / parallel.tensor = {}", tensor) : "";
    if (!divides_tokens(ranks())) {
      fault(path, fmt::format("must divide model.sequence_length = {}", model.sequence_length), nearest);
    } else if (!divides_heads(ranks())) {
      fault(path, fmt::format("must divide model.num_heads = {}{}", model.num_heads, over), nearest);
    } else if (!divides_kv_heads(ranks())) {
      fault(path,
            fmt::format("must divide model.num_kv_heads = {}{}, or be a multiple of it", model.num_kv_heads, over),
            nearest);
    }
  }
};

}  // namespace

void check_context(const RuleContext& context) { ContextRules(context).run(); }

}  // namespace gptrain::config
