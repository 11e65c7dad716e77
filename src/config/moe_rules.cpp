#include <fmt/format.h>
#include <string_view>

#include "base/fp8.h"
#include "base/json.h"
#include "config/context_method.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class MoeRules : Rules {
 public:
  explicit MoeRules(const RuleContext& context) : Rules(context) {}

  void resolve() {
    MoeConfig& moe = config_.model.moe;
    if (!moe.is_on()) return;
    if (moe.ffn_hidden_size == 0) moe.ffn_hidden_size = config_.model.ffn_hidden_size;
    if (moe.shared > 0 && moe.shared_ffn_hidden_size == 0)
      moe.shared_ffn_hidden_size = moe.shared * moe.ffn_hidden_size;
  }

  void check() {
    if (!sound({"model.moe"}) || !config_.model.moe.is_on()) return;
    check_choice();
    check_groups();
    check_balance();
    check_capacity();
    check_layers();
    check_sizes();
    check_features();
  }

 private:
  // Adds a fault of one of the object's keys.
  void fault_of(std::string_view key, const Json& value, const std::string& rule, const std::string& nearest) {
    faults_.add(fmt::format("model.moe.{}", key), show_value(value), rule, nearest);
  }

  void check_choice() {
    const MoeConfig& moe = config_.model.moe;
    if (moe.top_k > moe.experts)
      return fault_of("top_k", moe.top_k, fmt::format("must be at most model.moe.experts = {}", moe.experts),
                      fmt::format("{}", moe.experts));
    if (moe.top_k == 1 && moe.renormalise)
      fault_of("renormalise", true,
               "must be false with model.moe.top_k = 1: the only weight would be 1, which teaches the router nothing",
               "false");
    if (moe.top_k == moe.experts && moe.aux_loss > 0)
      fault_of("aux_loss", moe.aux_loss, "balances nothing with model.moe.top_k = model.moe.experts", "0");
    if (moe.shared == 0 && moe.shared_gate != SharedGate::none)
      fault_of("shared_gate", shared_gate_names[moe.shared_gate], "has no effect unless model.moe.shared is above 0",
               "\"none\"");
    if (moe.shared == 0 && moe.shared_ffn_hidden_size > 0)
      fault_of("shared_ffn_hidden_size", moe.shared_ffn_hidden_size, "has no effect unless model.moe.shared is above 0",
               "0");
  }

  void check_groups() {
    const MoeConfig& moe = config_.model.moe;
    if (moe.groups == 1 && moe.group_top_k == 1) return;
    const auto divides = [&](int64_t n) { return moe.experts % n == 0; };
    if (moe.groups == 1)
      return fault_of("group_top_k", moe.group_top_k, "has no effect unless model.moe.groups is above 1", "1");
    if (!divides(moe.groups))
      return fault_of("groups", moe.groups, fmt::format("must divide model.moe.experts = {}", moe.experts),
                      nearest_integers(moe.groups, 1, moe.experts, divides));
    const int64_t size = moe.experts / moe.groups;
    const auto fits = [&](int64_t n) { return n < moe.groups && moe.top_k % n == 0 && moe.top_k / n <= size; };
    if (!fits(moe.group_top_k))
      fault_of("group_top_k", moe.group_top_k,
               fmt::format("must be less than model.moe.groups = {}, and divide model.moe.top_k = {} into at most {} "
                           "experts of a group",
                           moe.groups, moe.top_k, size),
               nearest_integers(moe.group_top_k, 1, moe.groups, fits));
  }

  void check_balance() {
    const MoeConfig& moe = config_.model.moe;
    if (moe.router_bias_rate > 0 && moe.top_k == moe.experts)
      fault_of("router_bias_rate", moe.router_bias_rate, "balances nothing with model.moe.top_k = model.moe.experts",
               "0");
    if (moe.aux_over != BalanceOver::sequence && moe.aux_loss == 0)
      fault_of("aux_over", balance_over_names[moe.aux_over], "has no effect unless model.moe.aux_loss is above 0",
               "\"sequence\"");
    if (!moe.follows_loads()) return;
    const char* const key = moe.router_bias_rate > 0 ? "router_bias_rate" : "aux_over = \"global\"";
    const auto refuse = [&](const char* path, bool is_on, const char* rule, const char* nearest) {
      if (is_on && sound({path})) fault(path, fmt::format("{} with model.moe.{}", rule, key), nearest);
    };
    refuse("memory.offload_optimizer", config_.memory.offload_optimizer != StatePlace::none,
           "must be \"none\": updates beside the device do not see the experts' loads,", "\"none\"");
    refuse("comm.compression", config_.comm.compression.is_on(),
           "must be {}: errors of compression would move vectors that have no gradient,", "{}");
  }

  void check_capacity() {
    const MoeConfig& moe = config_.model.moe;
    if (moe.capacity > 0 && moe.capacity < 1)
      fault_of("capacity", moe.capacity, "must be 0 or at least 1: less drops tokens even of equal loads", "1");
    if (!may_share_sequences(moe) && config_.parallel.context > 1 && sound({"parallel.context"}))
      fault_of("capacity_over", capacity_over_names[moe.capacity_over],
               fmt::format("must be \"rank\" with parallel.context = {}: experts drop rows of whole sequences",
                           config_.parallel.context),
               "\"rank\"");
    if (moe.capacity > 0) return;
    if (moe.capacity_over != CapacityOver::sequence)
      fault_of("capacity_over", capacity_over_names[moe.capacity_over],
               "has no effect unless model.moe.capacity is above 0", "\"sequence\"");
    if (moe.drop != DropRule::probability)
      fault_of("drop", drop_rule_names[moe.drop], "has no effect unless model.moe.capacity is above 0",
               "\"probability\"");
  }

  void check_layers() {
    const MoeConfig& moe = config_.model.moe;
    if (!sound({"model.num_layers"})) return;
    const int64_t layers = config_.model.num_layers;
    if (moe.first >= layers) {
      fault_of("first", moe.first, fmt::format("must be less than model.num_layers = {}", layers),
               fmt::format("{}", layers - 1));
    }
    constexpr int64_t most_tensors = 1 << 16;  // experts of all blocks: entries of a checkpoint's manifest
    const int64_t with_experts = moe.first < layers ? (layers - moe.first + moe.every - 1) / moe.every : 0;
    if (with_experts * moe.experts > most_tensors) {
      fault_of("experts", moe.experts,
               fmt::format("makes {} experts in {} blocks, must be at most {}", with_experts * moe.experts,
                           with_experts, most_tensors),
               fmt::format("{}", most_tensors / with_experts));
    }
  }

  // Matrices of experts lie one behind the other, so that one op multiplies them all.
  void check_sizes() {
    const MoeConfig& moe = config_.model.moe;
    const int64_t hidden = config_.model.hidden_size, tensor = config_.parallel.tensor;
    if (!sound({"model.hidden_size", "model.ffn_hidden_size", "parallel.tensor"})) return;
    if (moe.ffn_hidden_size % tensor != 0 || moe.shared_ffn_hidden_size % tensor != 0) return;  // reported elsewhere
    constexpr int64_t multiple = 256;
    const auto fits = [&](int64_t width) { return width % tensor == 0 && hidden * (width / tensor) % multiple == 0; };
    if (!fits(moe.ffn_hidden_size)) {
      fault_of("ffn_hidden_size", moe.ffn_hidden_size,
               fmt::format("times model.hidden_size = {} over parallel.tensor = {} must be a multiple of {}", hidden,
                           tensor, multiple),
               nearest_integers(moe.ffn_hidden_size, 1, 1 << 22, fits));
    }
  }

  // Refuses keys whose part in experts does not exist.
  void check_features() {
    const ModelConfig& model = config_.model;
    const auto refuse = [&](const char* path, bool is_on, const char* rule, const char* nearest) {
      if (is_on && sound({path})) fault(path, rule, nearest);
    };
    const PrecisionConfig& precision = config_.precision;
    refuse("model.bias", model.bias, "must be false with model.moe: experts have no biases", "false");
    refuse("model.mup", model.mup > 0, "has no rule for experts of model.moe", "0");
    refuse("precision.linears", is_fp8(precision.linears), "cannot be fp8 with model.moe: experts have no FP8 products",
           "null");
    refuse("precision.weight_gradients", precision.weight_gradients != precision.compute && !is_fp8(precision.linears),
           "cannot be narrower than precision.compute with model.moe", "null");
    refuse("memory.activation_bits", config_.memory.activation_bits != 16,
           "must be 16 with model.moe: experts save the activation's input", "16");
    refuse("memory.saved_inputs", config_.memory.saved_inputs != 16,
           "must be 16 with model.moe: a router chooses by exact inputs", "16");
    refuse("memory.linear_projection", config_.memory.linear_projection.is_on(),
           "cannot be combined with model.moe: an expert's rows are no whole sequences", "{}");
  }
};

}  // namespace

void resolve_moe(const RuleContext& context) { MoeRules(context).resolve(); }
void check_moe(const RuleContext& context) { MoeRules(context).check(); }

}  // namespace gptrain::config
