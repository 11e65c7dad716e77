#include <fmt/format.h>

#include "base/units.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class ExpertRules : Rules {
 public:
  explicit ExpertRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({path, "model.moe"}) || config_.parallel.expert == 1) return;
    if (!config_.model.moe.is_on()) return fault(path, "must be 1 without model.moe: there are no experts", "1");
    check_sizes();
    check_features();
  }

 private:
  static constexpr const char* path = "parallel.expert";

  // Checks that experts divide evenly over the ranks, and ranks of a stage over the groups that share experts.
  void check_sizes() {
    const ParallelConfig& parallel = config_.parallel;
    const int64_t experts = config_.model.moe.experts, ranks = parallel.expert;
    const int64_t of_stage = parallel.tensor * parallel.context * data_ranks();
    const auto divides_experts = [&](int64_t n) { return experts % n == 0; };
    const auto divides_ranks = [&](int64_t n) { return of_stage % n == 0; };
    const std::string nearest =
        nearest_integers(ranks, 1, experts, [&](int64_t n) { return divides_experts(n) && divides_ranks(n); });
    if (!divides_experts(ranks)) {
      fault(path, fmt::format("must divide model.moe's experts = {}", experts), nearest);
    } else if (sound({"parallel.tensor", "parallel.context", "parallel.pipeline"}) && !divides_ranks(ranks)) {
      fault(path, fmt::format("must divide the {} of a stage", format_counted(of_stage, "rank")), nearest);
    }
  }

  // Refuses keys whose part in spread experts does not exist.
  void check_features() {
    const std::string setting = fmt::format("{} = {}", path, config_.parallel.expert);
    const auto refuse = [&](const char* key, bool is_on, const std::string& rule, const char* nearest) {
      if (is_on && sound({key})) fault(key, fmt::format("{} with {}", rule, setting), nearest);
    };
    const OptimizerKind type = config_.optimizer.type;
    refuse("parallel.elastic", config_.parallel.elastic, "must be false: experts are spread over data ranks", "false");
    refuse("optimizer.type",
           type != OptimizerKind::adamw && type != OptimizerKind::adamw_8bit && type != OptimizerKind::lion &&
               type != OptimizerKind::sgd,
           "must be \"adamw\", \"adamw-8bit\", \"lion\" or \"sgd\": others see whole matrices of all ranks",
           "\"adamw\"");
    refuse("optimizer.type", type == OptimizerKind::adamw_8bit && config_.parallel.tensor > 1,
           "cannot be \"adamw-8bit\" on several tensor ranks, whose blocks of experts have other numbers,",
           "\"adamw\"");
    refuse("memory.offload_optimizer", config_.memory.offload_optimizer != StatePlace::none,
           "must be \"none\": state of spread experts stays on their ranks", "\"none\"");
    refuse("comm.compression", config_.comm.compression.is_on(),
           "must be {}: errors of gradients are kept for data ranks only", "{}");
    refuse("run.sample_every_steps", config_.run.sample_every_steps > 0,
           "must be 0: texts are written by one rank, which has some experts only", "0");
  }
};

}  // namespace

void check_experts(const RuleContext& context) { ExpertRules(context).run(); }

}  // namespace gptrain::config
