#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <vector>

#include "config/parallelism.h"
#include "config/rules.h"
#include "config/zero_one_steps.h"

namespace gptrain::inline config {
namespace {

class CommRules : Rules {
 public:
  explicit CommRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({path}) || !config_.comm.compression.is_on()) return;
    const PrecisionConfig& precision = config_.precision;
    if (sound({"run.steps"}) && config_.comm.compression.start_step >= config_.run.steps)
      refuse(fmt::format("compresses nothing, as its start_step is not less than run.steps = {}", config_.run.steps));
    if (sound({"precision.compute"}) && precision.scales_loss())
      refuse(
          "cannot be combined with precision.compute = \"fp16\": error feedback would add errors with an old loss "
          "scale");
    if (sound({"precision.reduce"}) && precision.reduce != DType::f32)
      refuse("needs precision.reduce = \"fp32\": gradients that are not coded are summed in fp32");
    if (sound({"precision.gradients"}) && precision.gradients != DType::f32)
      refuse("needs precision.gradients = \"fp32\", in which errors are added to gradients");
    if (sound({"run.device"}) && config_.run.device == DeviceKind::cuda)
      fault("run.device", "cannot be cuda with comm.compression: its sums were not tested on the CUDA backend yet",
            "\"cpu\"");
    check_keys();
    check_errors();
    check_layout();
    if (compression().is_between_nodes()) check_nodes();
  }

 private:
  static constexpr const char* path = "comm.compression";

  const CompressionConfig& compression() const { return config_.comm.compression; }
  const GradientSumKind& facts() const { return compression().facts(); }

  // Returns the kinds with a key, as in: kind "a" reads; kinds "a" and "b" read.
  template <typename Key>
  static std::string readers(Key GradientSumKind::*key) {
    std::vector<std::string> names;
    for (const GradientSumKind& kind : gradient_sum_kinds)
      if (kind.*key > 0) names.push_back(fmt::format("\"{}\"", kind.name));
    return fmt::format("{} {} {}", names.size() > 1 ? "kinds" : "kind", fmt::join(names, " and "),
                       names.size() > 1 ? "read" : "reads");
  }

  void check_keys() const {
    if (facts().rank == 0 && compression().rank > 0)
      refuse(fmt::format("has a rank, which only {}", readers(&GradientSumKind::rank)));
    if (facts().share == 0 && compression().share > 0)
      refuse(fmt::format("has a share, which only {}", readers(&GradientSumKind::share)));
    if (compression().alternate && !facts().has_factors)
      refuse(fmt::format("of kind \"{}\" cannot alternate: only kind \"powersgd\" sums two factors", facts().name));
  }

  void check_errors() const {
    if (!compression().error && !facts().lost.empty())
      refuse(fmt::format("of kind \"{}\" needs error = true: without the errors, {}", facts().name, facts().lost));
  }

  void check_layout() const {
    const ParallelConfig& parallel = config_.parallel;
    const bool sums_too_often = sound({"parallel.zero"}) && parallel.zero > facts().most_zero;
    if (sums_too_often)
      refuse(fmt::format("of kind \"{}\" needs parallel.zero = 0 or 1, as it sums whole matrices once a step "
                         "(parallel.zero = {})",
                         facts().name, parallel.zero),
             R"({"kind": "int8"})");
    if (sound({"parallel.tensor"}) && facts().has_whole_matrices && parallel.tensor > 1)
      refuse(fmt::format("of kind \"{}\" needs parallel.tensor = 1, as it sums whole matrices", facts().name),
             R"({"kind": "int8"})");
    if (facts().most_share == nullptr || sums_too_often ||
        !sound({"parallel.zero", "parallel.tensor", "parallel.pipeline"}) || data_ranks() == 1)
      return;
    const double most = facts().most_share(compression().rank, parallel.zero, data_ranks());
    if (compression().share >= most)
      refuse(fmt::format("of kind \"{}\" needs a share below {:.3g} to send less than plain sums of {} data ranks do",
                         facts().name, most, data_ranks()),
             fmt::format(R"({{"kind": "{}", "share": {:.2g}}})", facts().name, most / 4));
  }

  void check_nodes() {
    if (!facts().sums_shares)
      refuse(fmt::format("of kind \"{}\" needs between = \"all\": between nodes a rank sums a share of each layer, "
                         "not whole matrices",
                         facts().name),
             R"({"kind": "int8", "between": "nodes"})");
    if (sound({"comm.hierarchy"}) && config_.comm.hierarchy == CommHierarchy::flat)
      fault("comm.hierarchy", "must be \"auto\" or \"node\" if comm.compression works between nodes", "\"auto\"");
  }

  void refuse(const std::string& rule, const std::string& nearest = "{}") const {
    faults_.add(path, show_value(find_field(path)->get(config_)), rule, nearest);
  }
};

// Rules of comm.weights.
class WeightRules : Rules {
 public:
  explicit WeightRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({path}) || config_.comm.weights == WeightCodec::as_is) return;
    const PrecisionConfig& precision = config_.precision;
    if (sound({"parallel.zero"}) && !cuts_weights(config_.parallel.zero))
      fault(path,
            fmt::format("needs parallel.zero = 3, which gathers weights for each pass (parallel.zero = {})",
                        config_.parallel.zero),
            "\"as-is\"");
    if (sound({"precision.compute"}) && precision.compute != DType::bf16)
      fault(path,
            fmt::format("needs precision.compute = \"bf16\" or \"bf16-pure\" (precision.compute = \"{}\")",
                        precision.scales_loss() ? "fp16" : "fp32"),
            "\"as-is\"");
    if (sound({"run.device"}) && config_.run.device == DeviceKind::cuda)
      fault("run.device", "cannot be cuda with comm.weights = \"int8\", which was not tested on the CUDA backend yet",
            "\"cpu\"");
  }

 private:
  static constexpr const char* path = "comm.weights";
};

// Rules of optimizer.type = onebit-adam and zero-one-adam, whose ranks send signs.
class SignRules : Rules {
 public:
  explicit SignRules(const RuleContext& context) : Rules(context) {}

  void run() {
    if (!sound({"optimizer.type"}) || !config_.optimizer.sends_signs()) return;
    check_optimizer();
    check_ranks();
    check_precision();
    refuse("comm.compression", config_.comm.compression.is_on(), "must be {}: momenta are sent as signs already,",
           "{}");
    refuse("parallel.elastic", config_.parallel.elastic, "must be false: each rank keeps errors of its own,", "false");
    refuse("model.moe", config_.model.moe.is_on(), "must be {}: experts see tokens by chance,", "{}");
    refuse("memory.offload_optimizer", config_.memory.keeps_state_away(),
           "must be \"none\": every backward pass reads the momenta,", "\"none\"");
    refuse("run.device", config_.run.device == DeviceKind::cuda,
           "cannot be cuda: its sums were not tested on the CUDA backend yet,", "\"cpu\"");
    if (is_zero_one()) check_local_phase();
  }

 private:
  bool is_zero_one() const { return config_.optimizer.type == OptimizerKind::zero_one_adam; }
  std::string_view type_name() const { return optimizer_names[config_.optimizer.type]; }

  void refuse(const char* path, bool fails, const std::string& rule, const std::string& nearest) {
    if (sound({path}) && fails) fault(path, fmt::format("{} with optimizer.type = \"{}\"", rule, type_name()), nearest);
  }

  void check_optimizer() {
    const OptimizerConfig& optimizer = config_.optimizer;
    refuse("optimizer.clip_norm", optimizer.clip_norm > 0,
           "must be 0: after freeze_step no rank knows the norm of the gradients' sum,", "0");
    refuse("optimizer.ema", optimizer.ema > 0, "must be 0", "0");
    if (sound({"optimizer.freeze_step", "run.steps"}) && optimizer.freeze_step >= config_.run.steps)
      fault("optimizer.freeze_step",
            fmt::format("freezes nothing, as it is not less than run.steps = {}", config_.run.steps),
            fmt::format("{}", std::max<int64_t>(1, config_.run.steps / 5)));
  }

  // Checks the steps in which ranks train alone.
  void check_local_phase() {
    const OptimizerConfig& optimizer = config_.optimizer;
    refuse("parallel.context", config_.parallel.context > 1, "must be 1: a rank trains alone on whole sequences,", "1");
    if (!sound({"optimizer.freeze_step", "optimizer.local_scaler", "optimizer.local_most", "run.steps"})) return;
    if (!std::has_single_bit(static_cast<uint64_t>(optimizer.local_most)))
      return fault("optimizer.local_most", "must be a power of two",
                   fmt::format("{}", std::bit_floor(static_cast<uint64_t>(optimizer.local_most))));
    const int64_t distance =
        zero_one_distance(optimizer, std::max<int64_t>(0, config_.run.steps - 1 - optimizer.freeze_step));
    check_reads_of_weights(distance, fmt::format("must be a multiple of {}, the largest distance of exchanges of "
                                                 "zero-one-adam, as weights are equal only after these",
                                                 distance));
  }

  void check_ranks() {
    const ParallelConfig& parallel = config_.parallel;
    refuse("parallel.zero", parallel.zero > 0, "must be 0: each rank adds its gradients to the whole momenta,", "0");
    refuse(
        "parallel.pipeline", parallel.pipeline > 1 && config_.model.tied_head,
        "must be 1 with model.tied_head: the first and the last stage cannot add up momenta of the table they share,",
        "1");
    if (sound({"parallel.tensor", "parallel.pipeline", "parallel.context"}) && data_ranks() == 1)
      fault("optimizer.type", "needs at least two data ranks: one has nothing to send", "\"adamw\"");
  }

  void check_precision() {
    const PrecisionConfig& precision = config_.precision;
    refuse("precision.compute", precision.scales_loss() || precision.pure,
           "must be fp32 or bf16: errors would be those of another loss scale, or of rounded weights,", "\"bf16\"");
    refuse("precision.reduce", precision.reduce != DType::f32, "must be \"fp32\"", "\"fp32\"");
    refuse("precision.gradients", precision.gradients != DType::f32, "must be \"fp32\"", "\"fp32\"");
  }
};

}  // namespace

void check_comm(const RuleContext& context) {
  CommRules(context).run();
  WeightRules(context).run();
  SignRules(context).run();
}

}  // namespace gptrain::config
