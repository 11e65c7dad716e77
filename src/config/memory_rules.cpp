#include <bit>
#include <fmt/format.h>

#include "base/fp8.h"
#include "config/rules.h"

namespace gptrain::inline config {
namespace {

class MemoryRules : Rules {
 public:
  explicit MemoryRules(const RuleContext& context) : Rules(context) {}

  void run() {
    check_activation_bits();
    check_saved_inputs();
    check_linear_projection();
    check_offload();
    check_disk();
  }

 private:
  void check_activation_bits() {
    const int64_t bits = config_.memory.activation_bits;
    if (!sound({"memory.activation_bits", "memory.recompute"}) || bits == 16) return;
    if (bits > 4) return fault("memory.activation_bits", "must be 16, 4, 3 or 2", "4");
    if (config_.memory.recompute == RecomputeKind::selective)
      fault("memory.activation_bits", "saves nothing with memory.recompute = \"selective\", which keeps the input",
            "16");
  }

  void check_saved_inputs() {
    const int64_t bits = config_.memory.saved_inputs;
    if (!sound({"memory.saved_inputs"}) || bits == 16) return;
    if (bits != 8) return fault("memory.saved_inputs", "must be 16 or 8", "8");
    const RecomputeKind recompute = config_.memory.recompute;
    if (sound({"memory.recompute"}) && (recompute == RecomputeKind::selective || recompute == RecomputeKind::ffn))
      fault("memory.saved_inputs",
            fmt::format("cannot be combined with memory.recompute = \"{}\", which recomputes a norm from an input that "
                        "must be exact",
                        recompute == RecomputeKind::ffn ? "ffn" : "selective"),
            "16");
    if (const std::string fp8 = fp8_key(); !fp8.empty())
      fault("memory.saved_inputs", "cannot be combined with " + fp8 + " = \"fp8\", which saves inputs in 8 bits itself",
            "16");
  }

  // Returns the key that asks for FP8 inputs of linears; empty: none.
  std::string fp8_key() const {
    for (const auto& [path, dtype] : {std::pair{"precision.linears", config_.precision.linears},
                                      {"precision.weight_gradients", config_.precision.weight_gradients}})
      if (sound({path}) && is_fp8(dtype)) return path;
    return {};
  }

  void check_linear_projection() {
    const char* const path = "memory.linear_projection";
    if (!sound({path}) || !config_.memory.linear_projection.is_on()) return;
    if (const std::string fp8 = fp8_key(); !fp8.empty())
      fault(path, "cannot be combined with " + fp8 + " = \"fp8\", whose linears save inputs in 8 bits", "{}");
    if (!sound({"batch.global", "batch.micro", "batch.accumulation", "parallel.sequence", "parallel.tensor"})) return;
    const int64_t micro = config_.batch.micro, tensor = config_.parallel.tensor;
    if (config_.parallel.sequence && micro > 0 && micro % tensor != 0)
      fault(path,
            fmt::format("projects whole sequences: with parallel.sequence batch.micro = {} must be a multiple of "
                        "parallel.tensor = {}",
                        micro, tensor),
            "{}");
  }

  void check_offload() {
    const char* const path = offload_key.data();
    const auto choice = config_.memory.offload;
    if (!sound({path}) || !choice.any()) return;
    const bool is_optimal = config_.memory.recompute == RecomputeKind::optimal;
    if (sound({"memory.recompute"}) && is_optimal && choice != offload::optimal)
      fault(path, "must be \"none\" or \"optimal\" with memory.recompute = \"optimal\"", "\"optimal\"");
    if (sound({"memory.recompute"}) && !is_optimal && choice == offload::optimal)
      fault(path, "needs memory.recompute = \"optimal\"", "\"hidden\"");
    if (sound({"model.num_layers"}) && choice.is_number() && choice.blocks() > config_.model.num_layers)
      fault(path, fmt::format("must be at most model.num_layers = {}", config_.model.num_layers), "\"all\"");
  }

  // Checks that whatever reads or writes optimizer state can do so while the state is on disk or on the host.
  // Sets checkpoint.asynchronous to false if state is on disk and the key is not given, unless checkpoints clone files.
  void check_disk() {
    const char* const path = "memory.offload_optimizer";
    if (!sound({path}) || !config_.memory.keeps_state_away()) return;
    if (sound({"run.device"}) && config_.run.device == DeviceKind::cpu && config_.memory.needs_gpu())
      fault(path, "is for GPUs: the memory of a CPU is the host's already", "\"disk\"");
    if (sound({"optimizer.type"}) && config_.optimizer.type == OptimizerKind::muon && !config_.memory.uses_disk())
      fault(path, "cannot be \"host\" with optimizer.type = \"muon\", whose matrix products are too slow there",
            "\"none\"");
    if (sound({"optimizer.qk_clip"}) && config_.optimizer.qk_clip > 0)
      fault(path, "cannot be combined with optimizer.qk_clip, which scales master weights after each update",
            "\"none\"");
    if (sound({"run.validate_ema"}) && config_.run.validate_ema)
      fault(path, "cannot be combined with run.validate_ema = true, which reads the averaged weights in memory",
            "\"none\"");
    const bool uses_disk = config_.memory.uses_disk();
    const bool clones = sound({"memory.disk_clones"}) && config_.memory.disk_clones == DiskClones::always;
    config_.memory.clones_files = clones;
    if (uses_disk && !clones && !is_given("checkpoint.asynchronous")) config_.checkpoint.asynchronous = false;
    if (clones && sound({"checkpoint.asynchronous"}) && !config_.checkpoint.asynchronous)
      fault("memory.disk_clones", "is for checkpoint.asynchronous = true: other checkpoints need no copy of the state",
            "\"auto\"");
    for (const std::string& folder : config_.memory.disk_folders())
      if (uses_disk && sound({"memory.disk_path"}) && folder.empty())
        fault("memory.disk_path", "names an empty folder between or beside ':'", "\"/scratch/nvme0\"");
    const int64_t bytes = config_.memory.disk_transfer_bytes;
    if (sound({"memory.disk_transfer_bytes"}) && (bytes & (bytes - 1)) != 0)
      fault("memory.disk_transfer_bytes", "must be a power of two",
            fmt::format("{}", std::bit_floor(static_cast<uint64_t>(bytes))));
    const int64_t units = config_.memory.disk_units;
    if (sound({"memory.disk_units"}) && units > 0 && units < 3)
      fault("memory.disk_units", "must be 0 or at least 3", "3");
    if (config_.memory.offload_update == UpdateTime::delayed) check_delay();
    if (config_.memory.offload_parameters != StatePlace::none) check_parameters_on_disk();
    if (config_.memory.offload_gradients != StatePlace::none) check_gradients_on_disk();
  }

  // Checks that values are to lie where the optimizer's state does.
  void check_place(const char* path, StatePlace place) {
    const StatePlace of_state = config_.memory.offload_optimizer;
    if (place == of_state) return;
    fault(path, "must be \"none\" or the value of memory.offload_optimizer",
          fmt::format("\"{}\"", state_place_name(of_state)));
  }

  // Checks that all layers' state is on disk or on the host: values that lie beside it are moved layer by layer.
  void check_share(const char* path, const char* nearest = "\"none\"") {
    if (sound({"memory.offload_optimizer_share"}) && config_.memory.offload_optimizer_share < 1)
      fault(path, "needs memory.offload_optimizer_share = 1, as it goes with the state of each layer", nearest);
  }

  // Refuses settings that delayed updates cannot be combined with.
  void check_delay() {
    const char* const path = "memory.offload_update";
    if (!sound({path})) return;
    check_share(path, "\"now\"");
    const auto refuse = [&](const char* key, bool is_there, const std::string& value) {
      if (sound({key}) && is_there) fault(path, fmt::format("cannot be combined with {} = {}", key, value), "\"now\"");
    };
    const MemoryConfig& memory = config_.memory;
    const auto quoted = [](std::string_view name) { return fmt::format("\"{}\"", name); };
    for (const auto& [key, place] : {std::pair{"memory.offload_parameters", memory.offload_parameters},
                                     {"memory.offload_gradients", memory.offload_gradients}})
      refuse(key, place != StatePlace::none, quoted(state_place_name(place)));
    const PrecisionConfig& precision = config_.precision;
    refuse("precision.compute", precision.compute == DType::f16, "\"fp16\", which skips steps to find its loss scale");
    refuse("precision.compute", precision.pure, "\"bf16-pure\", which updates the weights that ops read");
    refuse("precision.gradients", !precision.pure && precision.gradients != DType::f32, "\"bf16\"");
    refuse("parallel.zero", cuts_weights(config_.parallel.zero), "3");
    refuse("run.rollback", config_.run.rollback.skip_samples > 0, "{...}, which looks at the loss of the last update");
    using enum OptimizerKind;
    const OptimizerKind type = config_.optimizer.type;
    refuse("optimizer.type", type == adafactor || type == lamb || type == lars || type == muon,
           fmt::format("\"{}\", which reads gradients of whole tensors before the update", optimizer_names[type]));
  }

  void check_parameters_on_disk() {
    const char* const path = "memory.offload_parameters";
    if (!sound({path})) return;
    check_place(path, config_.memory.offload_parameters);
    check_share(path);
    if (const std::string fp8 = fp8_key(); !fp8.empty())
      fault(path, "cannot be combined with " + fp8 + " = \"fp8\", whose copies of weights lie in memory", "\"none\"");
  }

  void check_gradients_on_disk() {
    const char* const path = "memory.offload_gradients";
    if (!sound({path})) return;
    if (config_.memory.fits_places())
      return fault(path, "needs memory.offload_optimizer = \"host\" or \"disk\"", "\"none\"");
    check_place(path, config_.memory.offload_gradients);
    check_share(path);
    const OptimizerKind type = config_.optimizer.type;
    if (sound({"optimizer.type"}) && (type == OptimizerKind::adafactor || type == OptimizerKind::muon))
      fault(path,
            fmt::format("cannot be combined with optimizer.type = \"{}\", which replaces the gradients of all layers",
                        optimizer_names[type]),
            "\"none\"");
  }
};

}  // namespace

std::vector<std::string> MemoryConfig::disk_folders() const {
  std::vector<std::string> folders{""};
  for (const char c : disk_path) {
    if (c == ':') {
      folders.emplace_back();
    } else {
      folders.back() += c;
    }
  }
  return folders;
}

void check_memory(const RuleContext& context) { MemoryRules(context).run(); }

}  // namespace gptrain::config
