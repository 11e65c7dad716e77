#include "config/checks.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

#include "base/amount.h"
#include "config/axis_sizes.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class AllRules : Rules {
 public:
  explicit AllRules(const RuleContext& context) : Rules(context), context_(context) {}

  void run() {
    check_presence();
    resolve_model(context_);
    resolve_moe(context_);
    check_max_documents();
    check_mixture();
    resolve_mesh(context_);
    check_context(context_);
    resolve_method(context_);
    check_memory(context_);
    check_moe(context_);
    check_experts(context_);
    check_comm(context_);
    check_local_steps(context_);
    check_nodes(context_);
    check_totals();
    check_size();
    check_used();
  }

 private:
  void check_presence() {
    for (const Field& field : fields()) {
      if (field.presence != Presence::required || is_given(field.path) || faults_.concern(field.path)) continue;
      if (field.dependency && (faults_.concern(field.dependency->path) || !field.used(config_))) continue;
      const bool of_model = field.section() == "model";
      if (of_model && is_given("model.preset")) continue;
      std::string rule = "must be given";
      if (of_model) rule += ", here or by model.preset";
      if (field.dependency) rule += ", as " + field.dependency->condition;
      faults_.add(field.path, "", rule, field.example);
    }
  }

  void check_max_documents() {
    const int64_t length = config_.model.sequence_length;
    if (!sound({"data.max_documents", "model.sequence_length"}) || config_.data.max_documents <= length) return;
    fault("data.max_documents", fmt::format("must be at most model.sequence_length = {}", length),
          fmt::format("{}", length));
  }

  void check_mixture() {
    if (!sound({"data.train"})) return;
    const std::vector<DataSource>& sources = config_.data.train;
    const auto by_epochs = [](const DataSource& source) { return source.epochs > 0; };
    const auto counted = std::count_if(sources.begin(), sources.end(), by_epochs);
    if (counted > 0 && counted < static_cast<int64_t>(sources.size())) {
      const auto other = std::find_if_not(sources.begin(), sources.end(), by_epochs) - sources.begin();
      faults_.add(fmt::format("data.train[{}].epochs", other), "", "must be given, as other sources have it", "1");
    }
    if (counted > 0 && config_.data.temperature > 0 && sound({"data.temperature"}))
      fault("data.temperature", "cannot be combined with the epochs of sources", "0");
    if (sound({"data.phases"})) check_phases();
  }

  void check_phases() {
    int64_t before = 0;
    for (size_t i = 0; i < config_.data.phases.size(); ++i) {
      const DataPhase& phase = config_.data.phases[i];
      const std::string path = fmt::format("data.phases[{}]", i);
      if (phase.until_step <= before) {
        faults_.add(path + ".until_step", fmt::format("{}", phase.until_step),
                    fmt::format("must be greater than {}", before), fmt::format("{}", before + 1));
      }
      before = phase.until_step;
      if (phase.weights.size() != config_.data.train.size()) {
        faults_.add(
            path + ".weights", show_value(Json(phase.weights)),
            fmt::format("must hold a weight for each of the {} sources of data.train", config_.data.train.size()), "");
      } else if (std::all_of(phase.weights.begin(), phase.weights.end(), [](double w) { return w == 0; })) {
        faults_.add(path + ".weights", show_value(Json(phase.weights)), "must not all be 0", "");
      }
    }
  }

  // Checks products that later code computes in 64 bits (tokens of the run) and 32 bits (rows of a matrix).
  void check_totals() {
    const BatchConfig& batch = config_.batch;
    const int64_t length = config_.model.sequence_length;
    if (!sound({"batch.global", "batch.micro", "batch.accumulation", "model.sequence_length"})) return;
    if (batch.global == 0) return;  // a fault left the batch underived
    constexpr int64_t max_rows = std::numeric_limits<int32_t>::max();
    if (batch.micro > max_rows / length) {
      fault("batch.micro", fmt::format("times model.sequence_length = {} must be at most {} tokens", length, max_rows),
            nearest_integers(batch.micro, 1, max_rows / length, [&](int64_t n) { return batch.global % n == 0; }));
    }
    const int64_t step_tokens = batch.global * length;
    if (sound({"run.steps"}) && config_.run.steps > max_int64 / step_tokens) {
      fault("run.steps",
            fmt::format("times batch.global * model.sequence_length = {} * {} must be less than 2^63 tokens",
                        batch.global, length),
            fmt::format("{}", max_int64 / step_tokens));
    }
  }

  // Checks an upper bound of a run's bytes without sharding. Below the limit no sum or product of bytes in a plan
  // exceeds 64 bits; no machine comes near it.
  void check_size() {
    if (!faults_.empty()) return;
    constexpr Amount limit = int64_t{1} << 62;
    const ModelConfig& model = config_.model;
    const Amount hidden = model.hidden_size, ffn = model.ffn_hidden_size, layers = model.num_layers;
    const Amount heads = Amount(model.num_heads) * model.head_size;
    const Amount vocabulary = model.vocab_size, length = model.sequence_length;
    constexpr int64_t bytes_of_parameter = 64;  // bytes of all forms of weight, gradient and optimizer state
    const MoeConfig& moe = model.moe;
    const Amount of_experts = Amount(moe.experts) * hidden * (Amount(moe.ffn_hidden_size) * 3 + 1);
    const Amount shared = moe.shared_ffn_hidden_size;
    const Amount of_block =
        hidden * heads * 4 + hidden * (ffn + shared) * 3 + (hidden + heads + ffn + shared) * 16 + of_experts;
    const Amount parameters = (layers * of_block + vocabulary * hidden * 2 + length * hidden) * bytes_of_parameter;
    constexpr int64_t bytes_of_feature = 64;  // per row: saved activations and temporaries of backward
    const Amount routed = moe.is_on() ? Amount(moe.top_k) * (Amount(moe.ffn_hidden_size) + hidden) + moe.experts : 0;
    const Amount features = (hidden + heads) * 32 + (ffn + shared + routed) * 16 + Amount(model.num_heads) * 32 + 64;
    const Amount rows = Amount(config_.batch.micro) * length;
    const Amount activations = rows * (layers + 4) * features * bytes_of_feature;
    constexpr int64_t default_chunk = 8192, bytes_of_logit = 64;
    const Amount chunk = std::max(config_.memory.loss_chunk_tokens, default_chunk);
    const Amount logits = chunk * (vocabulary + (int64_t{1} << 22)) * bytes_of_logit;
    const auto refuse = [&](const char* path, const char* what) {
      fault(path, fmt::format("makes {} larger than 2^63 bytes", what), "");
    };
    if (parameters >= limit) return refuse("model.hidden_size", "the weights and their state");
    if (activations >= limit) return refuse(rows > layers * hidden ? "batch.micro" : "model.num_layers", "activations");
    if (logits >= limit) return refuse("memory.loss_chunk_tokens", "logits");
    if ((parameters + activations + logits).too_large())
      refuse("model.hidden_size", "weights, activations and logits together");
  }

  void check_used() {
    const RunConfig defaults;
    for (const Field& field : fields()) {
      if (field.used(config_) || !sound({field.dependency->path.c_str()})) continue;
      if (is_given(field.path) && sound({field.path.c_str()})) {
        fault(field.path, "has no effect unless " + field.dependency->condition,
              fmt::format("--set {}=null or leaving it out", field.path));
      }
      field.set(config_, field.get(defaults));
    }
  }

  const RuleContext context_;
};

// Returns the largest number of ranks, at most `world_size`, for which the config has no fault. If there is none,
// returns the ranks of one model replica, whose faults do not come from the number of ranks.
int64_t most_ranks_without_fault(const RunConfig& config, const std::set<std::string>& given, int64_t world_size,
                                 const Faults& faults) {
  const int64_t of_model = ranks_of_model(config.parallel);
  if (!faults.empty() || world_size < of_model) return world_size;
  for (int64_t data = std::min(world_size / of_model, config.batch.global); data > 1; --data) {
    if (config.batch.global % data != 0) continue;
    RunConfig derived = config;
    Faults found;
    AllRules({derived, given, data * of_model, found}).run();
    if (found.empty()) return data * of_model;
  }
  return of_model;
}

}  // namespace

void resolve(RunConfig& config, const std::set<std::string>& given, int64_t world_size, Faults& faults) {
  if (config.parallel.elastic) world_size = most_ranks_without_fault(config, given, world_size, faults);
  AllRules({config, given, world_size, faults}).run();
}

}  // namespace gptrain::config
