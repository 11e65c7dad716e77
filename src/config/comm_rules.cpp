#include <fmt/format.h>

#include "config/rules.h"

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

  void refuse(const std::string& rule, const std::string& nearest = "{}") const {
    faults_.add(path, show_value(find_field(path)->get(config_)), rule, nearest);
  }
};

}  // namespace

void check_comm(const RuleContext& context) { CommRules(context).run(); }

}  // namespace gptrain::config
