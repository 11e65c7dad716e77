#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <string>
#include <string_view>

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
          "cannot be combined with precision.compute = \"fp16\": kept errors would be multiplied by an old loss scale");
    if (sound({"precision.reduce"}) && precision.reduce != DType::f32)
      refuse("needs precision.reduce = \"fp32\": gradients that are not coded are summed in fp32");
    if (sound({"precision.gradients"}) && precision.gradients != DType::f32)
      refuse("needs precision.gradients = \"fp32\", in which errors are added to gradients");
    if (sound({"run.device"}) && config_.run.device == DeviceKind::cuda)
      fault("run.device", "cannot be cuda with comm.compression: its sums were not tested on the CUDA backend yet",
            "\"cpu\"");
    check_low_rank();
    check_sparse();
  }

 private:
  static constexpr const char* path = "comm.compression";

  void check_low_rank() const {
    const CompressionConfig& compression = config_.comm.compression;
    if (!compression.is_low_rank()) {
      if (compression.rank > 0) refuse("has a rank, which only kind \"powersgd\" reads");
      return;
    }
    if (!compression.error)
      refuse("of kind \"powersgd\" needs error = true: without the errors, most of each gradient would be lost");
    if (sound({"parallel.zero"}) && config_.parallel.zero > 1)
      refuse(fmt::format("of kind \"powersgd\" needs parallel.zero = 0 or 1, as it sums whole matrices once a step "
                         "(parallel.zero = {})",
                         config_.parallel.zero),
             R"({"kind": "int8"})");
    if (sound({"parallel.tensor"}) && config_.parallel.tensor > 1)
      refuse("of kind \"powersgd\" needs parallel.tensor = 1, as it sums whole matrices", R"({"kind": "int8"})");
  }

  void check_sparse() const {
    const CompressionConfig& compression = config_.comm.compression;
    if (!compression.is_sparse()) {
      if (compression.share > 0) refuse("has a share, which only kind \"topk\" reads");
      return;
    }
    if (!compression.error)
      refuse("of kind \"topk\" needs error = true: without the errors, small elements would never be sent");
    if (sound({"parallel.zero"}) && config_.parallel.zero > 1)
      return refuse(fmt::format("of kind \"topk\" needs parallel.zero = 0 or 1, as it sums whole matrices once a step "
                                "(parallel.zero = {})",
                                config_.parallel.zero),
                    R"({"kind": "int8"})");
    if (!sound({"parallel.zero", "parallel.tensor", "parallel.pipeline"}) || data_ranks() == 1) return;
    // A rank sends index and value of each element to all others, where a plain sum sends an equal part of all elements
    // to each, and with ZeRO 0 as much back.
    const double most = (config_.parallel.zero == 0 ? 1.0 : 0.5) / static_cast<double>(data_ranks());
    if (compression.share >= most)
      refuse(fmt::format("of kind \"topk\" needs a share below {:.3g} to send less than plain sums of {} data ranks do",
                         most, data_ranks()),
             fmt::format(R"({{"kind": "topk", "share": {:.2g}}})", most / 4));
  }

  void refuse(const std::string& rule, const std::string& nearest = "{}") const {
    faults_.add(path, show_value(find_field(path)->get(config_)), rule, nearest);
  }
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
  SignRules(context).run();
}

}  // namespace gptrain::config
