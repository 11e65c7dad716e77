#include <algorithm>
#include <fmt/format.h>

#include "config/context_method.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

bool has_patterns_of_ring(const ModelConfig& model) {
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const AttentionKind kind = model.attention(layer).kind;
    if (kind != AttentionKind::dense && kind != AttentionKind::band) return false;
  }
  return true;
}

class ContextRules : Rules {
 public:
  explicit ContextRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({path, method_path}) || ranks() == 1) return;
    resolve_method();
    is_ring() ? check_ring() : check_heads();
    const std::string setting = fmt::format("{} = {}", path, ranks());
    if (sound({"memory.linear_projection"}) && config_.memory.linear_projection.is_on())
      fault("memory.linear_projection",
            fmt::format("projects whole sequences, but with {} a rank has only a part of each", setting), "{}");
  }

 private:
  static constexpr const char* path = "parallel.context";
  static constexpr const char* method_path = "parallel.context_method";

  int64_t ranks() const { return config_.parallel.context; }
  bool is_ring() const { return config_.parallel.context_method == ContextMethod::ring; }
  bool sizes_are_sound() const {
    return sound({"parallel.tensor", "model.num_heads", "model.num_kv_heads", "model.sequence_length"}) &&
           config_.model.num_heads % config_.parallel.tensor == 0;
  }

  void resolve_method() {
    ParallelConfig& parallel = config_.parallel;
    if (parallel.context_method != ContextMethod::automatic) return;
    parallel.chooses_context_method = true;
    const bool takes_ring =
        sizes_are_sound() && suits_ring(config_) && (!suits_heads(config_) || config_.memory.saved_inputs == 8);
    parallel.context_method = takes_ring ? ContextMethod::ring : ContextMethod::heads;
  }

  // Checks that tokens divide evenly over the ranks' runs, and that queries see all keys of a window.
  void check_ring() {
    if (!sound({"model.sequence_length"})) return;
    const ModelConfig& model = config_.model;
    if (model.sequence_length % (2 * ranks()) != 0) {
      fault(path,
            fmt::format("times 2 must divide model.sequence_length = {} with {} = ring, where each rank has two runs",
                        model.sequence_length, method_path),
            nearest_integers(ranks(), 1, model.sequence_length / 2,
                             [&](int64_t n) { return n == 1 || model.sequence_length % (2 * n) == 0; }));
    }
    if (sound({"model.attention_pattern"}) && !has_patterns_of_ring(model))
      fault(method_path, "ring needs dense or band:W patterns, with or without +global:G", "\"heads\"");
  }

  // Checks that tokens and heads divide evenly over the ranks.
  void check_heads() {
    if (!sizes_are_sound()) return;  // reported elsewhere
    const ModelConfig& model = config_.model;
    const int64_t tensor = config_.parallel.tensor;
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

bool may_share_sequences(const MoeConfig& moe) {
  return moe.capacity == 0 || moe.capacity_over != CapacityOver::sequence;
}

bool suits_heads(const StepConfig& config) {
  const ModelConfig& model = config.model;
  const int64_t tensor = config.parallel.tensor, ranks = config.parallel.context;
  const int64_t heads = model.num_heads / tensor, kv_heads = std::max<int64_t>(1, model.num_kv_heads / tensor);
  return model.sequence_length % ranks == 0 && heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0);
}

bool suits_ring(const StepConfig& config) {
  return config.model.sequence_length % (2 * config.parallel.context) == 0 && has_patterns_of_ring(config.model);
}

bool leaves_node(const ParallelConfig& parallel, int64_t ranks_per_node) {
  const int64_t ranks = parallel.tensor * parallel.context;
  return ranks_per_node > 0 && ranks_per_node % ranks != 0;
}

void choose_context_method(StepConfig& config, bool leaves_node) {
  ParallelConfig& parallel = config.parallel;
  if (!parallel.chooses_context_method || parallel.context_method != ContextMethod::heads) return;
  if (leaves_node && suits_ring(config)) parallel.context_method = ContextMethod::ring;
}

}  // namespace gptrain::config
