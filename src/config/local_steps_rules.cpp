#include <algorithm>
#include <array>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <utility>

#include "config/rules.h"

namespace gptrain::inline config {
namespace {

// Optimizers whose update of an element reads values of that element only.
constexpr std::array local_optimizers = {OptimizerKind::adamw, OptimizerKind::lion, OptimizerKind::sgd};

class LocalStepsRules : Rules {
 public:
  explicit LocalStepsRules(const RuleContext& context) : Rules(context), local_(context.config.parallel.local_steps) {}

  void run() {
    if (!sound({path})) return;
    if (local_.outer == OuterStep::nesterov && !local_.is_on())
      refuse("with outer = \"nesterov\" needs at least 2 islands: with one there is nothing to average");
    if (local_.outer == OuterStep::average && (local_.outer_lr != 1 || local_.outer_momentum != 0))
      refuse("has outer_lr or outer_momentum, which only outer = \"nesterov\" reads");
    if (!local_.is_on()) return;
    check_islands();
    check_others();
    check_reads_of_weights(local_.every,
                           fmt::format("must be a multiple of parallel.local_steps' every = {}, as weights "
                                       "are equal then only",
                                       local_.every));
  }

 private:
  static constexpr const char* path = "parallel.local_steps";

  void refuse(const std::string& rule, const std::string& nearest = "{}") const {
    faults_.add(path, show_value(find_field(path)->get(config_)), rule, nearest);
  }

  void check_islands() {
    if (sound({"run.steps"}) && local_.start_step >= config_.run.steps)
      refuse(fmt::format("has no local steps, as its start_step is not less than run.steps = {}", config_.run.steps));
    if (!sound({"parallel.tensor", "parallel.pipeline", "parallel.context"})) return;
    if (config_.parallel.context > 1) return refuse("cannot be combined with parallel.context greater than 1");
    const int64_t ranks = data_ranks();
    if (ranks % local_.islands == 0) return;
    int64_t islands = std::min(local_.islands, ranks);
    while (ranks % islands != 0) --islands;
    refuse(fmt::format("needs islands that divide the {} data ranks", ranks),
           islands > 1 ? fmt::format(R"({{"islands": {}, "every": {}}})", islands, local_.every) : "{}");
  }

  void check_others() {
    const PrecisionConfig& precision = config_.precision;
    if (sound({"optimizer.type"}) &&
        std::find(local_optimizers.begin(), local_optimizers.end(), config_.optimizer.type) == local_optimizers.end())
      fault("optimizer.type", "must be adamw, lion or sgd with parallel.local_steps, whose islands update alone",
            "\"adamw\"");
    if (sound({"optimizer.ema"}) && config_.optimizer.ema > 0)
      fault("optimizer.ema", "must be 0 with parallel.local_steps, as islands have other weights between averagings",
            "0");
    if (sound({"precision.compute"}) && precision.pure)
      fault("precision.compute", "needs fp32 master weights with parallel.local_steps, which averages them",
            "\"bf16\"");
    if (sound({"precision.reduce"}) && precision.reduce != DType::f32)
      fault("precision.reduce", "must be \"fp32\" with parallel.local_steps", "\"fp32\"");
    if (sound({"comm.compression"}) && config_.comm.compression.is_on())
      fault("comm.compression", "cannot be combined with parallel.local_steps: choose one of the two", "{}");
    if (sound({"parallel.expert"}) && config_.parallel.expert > 1)
      fault("parallel.expert", "must be 1 with parallel.local_steps", "1");
    if (sound({"parallel.elastic"}) && config_.parallel.elastic)
      fault("parallel.elastic", "cannot be combined with parallel.local_steps: each island has state of its own",
            "false");
    if (sound({"memory.offload_optimizer"}) && config_.memory.keeps_state_away())
      fault("memory.offload_optimizer", "must be \"none\" with parallel.local_steps", "\"none\"");
  }

  const LocalStepsConfig& local_;
};

}  // namespace

void check_local_steps(const RuleContext& context) { LocalStepsRules(context).run(); }

}  // namespace gptrain::config
