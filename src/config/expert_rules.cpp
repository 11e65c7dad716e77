#include <fmt/format.h>
#include <utility>

#include "base/units.h"
#include "config/axis_sizes.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class ExpertRules : Rules {
 public:
  explicit ExpertRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({path, "model.moe"}) || config_.parallel.expert == 1) return;
    if (!config_.model.moe.is_on()) return fault(path, "must be 1 without model.moe: there are no experts", "1");
    check_tensor();
    check_sizes();
    check_features();
  }

 private:
  int64_t ranks_of_stage() const { return config_.parallel.tensor * config_.parallel.context * data_ranks(); }

  static constexpr const char *path = "parallel.expert", *tensor_path = "parallel.expert_tensor";

  // Checks that experts are whole, or cut over all tensor ranks.
  void check_tensor() {
    const ParallelConfig& parallel = config_.parallel;
    if (!sound({tensor_path, "parallel.tensor"}) || parallel.expert_tensor == 1) return;
    if (parallel.expert_tensor != parallel.tensor)
      fault(tensor_path, fmt::format("must be 1 or parallel.tensor = {}", parallel.tensor),
            fmt::format("{}", parallel.tensor));
  }

  // Checks that experts divide evenly over the ranks, and ranks of a stage over the groups that share experts.
  void check_sizes() {
    const ParallelConfig& parallel = config_.parallel;
    const int64_t experts = config_.model.moe.experts, ranks = parallel.expert;
    const int64_t of_stage = ranks_of_stage();
    const auto divides_experts = [&](int64_t n) { return experts % n == 0; };
    const int64_t of_expert = parallel.expert_tensor;
    // The mesh reports a number of ranks that it does not divide.
    const bool has_mesh = world_size_ % ranks_of_model(parallel) == 0;
    const auto divides_ranks = [&](int64_t n) { return !has_mesh || of_stage % (n * of_expert) == 0; };
    const std::string nearest =
        nearest_integers(ranks, 1, experts, [&](int64_t n) { return divides_experts(n) && divides_ranks(n); });
    if (!divides_experts(ranks)) {
      fault(path, fmt::format("must divide model.moe's experts = {}", experts), nearest);
    } else if (sound({"parallel.tensor", "parallel.context", "parallel.pipeline", tensor_path}) &&
               !divides_ranks(ranks)) {
      const std::string times = of_expert > 1 ? fmt::format("times {} = {} ", tensor_path, of_expert) : "";
      fault(path, fmt::format("{}must divide the {} of a stage", times, format_counted(of_stage, "rank")), nearest);
    }
  }

  // Refuses keys whose part in spread experts does not exist.
  void check_features() {
    const std::string setting = fmt::format("{} = {}", path, config_.parallel.expert);
    const auto refuse = [&](const char* key, bool is_on, const std::string& rule, const char* nearest) {
      if (is_on && sound({key})) fault(key, fmt::format("{} with {}", rule, setting), nearest);
    };
    const ParallelConfig& parallel = config_.parallel;
    const OptimizerKind type = config_.optimizer.type;
    refuse("parallel.elastic", config_.parallel.elastic, "must be false: experts are spread over data ranks", "false");
    refuse("optimizer.type",
           type != OptimizerKind::adamw && type != OptimizerKind::adamw_8bit && type != OptimizerKind::lion &&
               type != OptimizerKind::sgd && type != OptimizerKind::muon,
           "must be \"adamw\", \"adamw-8bit\", \"lion\", \"sgd\" or \"muon\": others need sums over tensors of "
           "other ranks",
           "\"adamw\"");
    for (const auto& [key, place] : {std::pair{"memory.offload_parameters", config_.memory.offload_parameters},
                                     {"memory.offload_gradients", config_.memory.offload_gradients}})
      refuse(
          key,
          place != StatePlace::none && data_ranks() == 1 && ranks_of_stage() > parallel.expert * parallel.expert_tensor,
          "must be \"none\" with one data rank but several ranks that have the same experts", "\"none\"");
    refuse("comm.compression", config_.comm.compression.is_on(),
           "must be {}: error feedback works between data ranks only", "{}");
  }
};

}  // namespace

void check_experts(const RuleContext& context) { ExpertRules(context).run(); }

}  // namespace gptrain::config
