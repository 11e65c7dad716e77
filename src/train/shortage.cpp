#include "train/shortage.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/load.h"
#include "report/text_parts.h"
#include "train/plan_step.h"

namespace gptrain {
namespace {

// With more rows of logits than this, no device is noticeably faster.
constexpr int64_t small_chunk = 2048;

using Change = std::function<void(RunConfig&)>;

// Settings that may shrink a plan.
struct Remedy {
  std::string setting;
  Change change;
  bool fills = false;  // it takes what others leave: of use where it fits, and no part of what all do together
  RankBytes bytes = {};  // with it
};

class Remedies {
 public:
  Remedies(const RunConfig& config, const Target& target, int64_t world_size)
      : config_(config), target_(target), world_size_(world_size) {}

  std::vector<Remedy> possible() {
    add_recomputation();
    add_batch();
    add_precision();
    add_saved();
    add_the_rest();
    return std::move(remedies_);
  }

 private:
  void add(std::string setting, Change change, bool fills = false) {
    remedies_.push_back({std::move(setting), std::move(change), fills});
  }

  // What the config may give that another recomputation is refused with, taken back.
  std::string taken_back() const {
    if (config_.memory.recompute == RecomputeKind::every_nth) return ", memory.recompute_interval = null";
    return config_.memory.recompute == RecomputeKind::optimal ? ", memory.activation_budget = null" : "";
  }

  void add_recomputation() {
    const MemoryConfig& memory = config_.memory;
    const bool is_gpu = target_.kind == Target::Kind::gpu;
    const bool is_optimal = memory.recompute == RecomputeKind::optimal;
    if (memory.recompute == RecomputeKind::none)
      add("memory.recompute = \"selective\"", [](RunConfig& run) { run.memory.recompute = RecomputeKind::selective; });
    if (memory.recompute != RecomputeKind::block && memory.offload_activations != optimal_offload)
      add("memory.recompute = \"block\"" + taken_back(),
          [](RunConfig& run) { run.memory.recompute = RecomputeKind::block; });
    if (is_gpu && !is_optimal)
      add("memory.offload_activations = \"all\"", [](RunConfig& run) { run.memory.offload_activations = all_offload; });
    if (is_optimal && memory.activation_budget > 0)
      add("memory.activation_budget = \"fit\"", [](RunConfig& run) { run.memory.activation_budget = 0; }, true);
    if (is_optimal) return;
    const bool offloads = memory.offload_activations != no_offload;
    const std::string_view copied = !offloads ? "" : is_gpu ? ", memory.offload_activations = \"optimal\""
                                                            : ", memory.offload_activations = \"none\"";
    add(fmt::format("memory.recompute = \"optimal\"{}{}", taken_back(), copied),
        [=](RunConfig& run) {
          run.memory.recompute = RecomputeKind::optimal;
          run.memory.offload_activations = offloads && is_gpu ? optimal_offload : no_offload;
        },
        true);
  }

  void add_batch() {
    const int64_t micro = config_.batch.micro;
    for (int64_t smaller = micro / 2; smaller > 0; --smaller) {
      const auto change = [smaller](RunConfig& run) {
        run.batch.accumulation *= run.batch.micro / smaller;
        run.batch.micro = smaller;
      };
      RunConfig changed = config_;
      if (micro % smaller == 0) change(changed);
      if (micro % smaller != 0 || !settled(changed, world_size_)) continue;
      return add(fmt::format("batch.micro = {} instead of {}", smaller, micro), change);
    }
  }

  void add_precision() {
    const PrecisionConfig& precision = config_.precision;
    const OptimizerKind optimizer = config_.optimizer.type;
    if (precision.compute == DType::f32) {
      const DType narrow = target_.bf16_products ? DType::bf16 : DType::f16;
      add(fmt::format("precision.compute = \"{}\"", target_.bf16_products ? "bf16" : "fp16"), [narrow](RunConfig& run) {
        PrecisionConfig& all = run.precision;
        all.compute = all.residual = all.linears = all.weight_gradients = narrow;
      });
    }
    if (precision.compute == DType::bf16 && !precision.pure)
      add("precision.compute = \"bf16-pure\"", [](RunConfig& run) { run.precision.pure = true; });
    if (precision.pure && precision.gradients == DType::f32)
      add("precision.gradients = \"bf16\"", [](RunConfig& run) { run.precision.gradients = DType::bf16; });
    if (optimizer == OptimizerKind::adamw)
      add("optimizer.type = \"adamw-8bit\"", [](RunConfig& run) { run.optimizer.type = OptimizerKind::adamw_8bit; });
  }

  void add_saved() {
    constexpr int64_t code_bits = 3;  // with which losses are those without codes, nearly
    if (config_.memory.activation_bits > code_bits)
      add(fmt::format("memory.activation_bits = {}", code_bits),
          [](RunConfig& run) { run.memory.activation_bits = code_bits; });
    if (config_.memory.saved_inputs == 16)
      add("memory.saved_inputs = 8", [](RunConfig& run) { run.memory.saved_inputs = 8; });
    const int64_t chunk = config_.memory.loss_chunk_tokens;
    if (chunk > small_chunk || (chunk == 0 && target_.kind == Target::Kind::gpu))
      add(fmt::format("memory.loss_chunk_tokens = {}", small_chunk),
          [](RunConfig& run) { run.memory.loss_chunk_tokens = small_chunk; });
  }

  void add_the_rest() {
    if (config_.checkpoint.keeps_snapshot() && host_place(target_) == MemoryPlace::device)
      add("checkpoint.asynchronous = false", [](RunConfig& run) { run.checkpoint.asynchronous = false; });
    if (world_size_ > config_.parallel.tensor * config_.parallel.pipeline)
      for (int64_t stage = config_.parallel.zero + 1; stage <= 3; ++stage)
        add(fmt::format("parallel.zero = {}", stage), [stage](RunConfig& run) { run.parallel.zero = stage; });
  }

  const RunConfig& config_;
  const Target& target_;
  const int64_t world_size_;
  std::vector<Remedy> remedies_;
};

// With the change, all rules applied. None: one forbids it.
std::optional<RunConfig> changed_by(const Remedy& remedy, RunConfig config, int64_t world_size) {
  remedy.change(config);
  return settled(std::move(config), world_size);
}

// Remedies that can be set at once, the best first: one for each key.
struct Together {
  RunConfig config;
  size_t count = 0;
  std::vector<std::string> others;
};

Together together(const std::vector<Remedy>& remedies, const RunConfig& config, int64_t world_size) {
  Together all{config, 0, {}};
  std::set<std::string> keys;
  for (const Remedy& remedy : remedies) {
    const std::string key = remedy.setting.substr(0, remedy.setting.find(' '));
    const bool has_place = !remedy.fills && !keys.contains(key);
    if (std::optional<RunConfig> more = has_place ? changed_by(remedy, all.config, world_size) : std::nullopt) {
      all.config = std::move(*more);
      keys.insert(key);
      ++all.count;
    } else {
      all.others.push_back(remedy.setting);
    }
  }
  return all;
}

// What asks for a class of memory of the host, and what takes less.
std::string_view host_remedy(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::offloaded:
      return "memory.offload_activations; a smaller number of blocks, or \"none\", takes less";
    case MemoryClass::snapshot:
      return "checkpoint.asynchronous; false takes none";
    case MemoryClass::samples:
      return "run.sample_every_steps; 0 takes none";
    case MemoryClass::data:
      return "micro-batches that are read ahead; a smaller batch.micro takes less";
    default:
      return "what ranks exchange";
  }
}

std::string share_of(const Target& target) {
  if (target.sharing == 1) return target.name;
  return fmt::format("{} for each of the {} ranks that share it", target.name, target.sharing);
}

}  // namespace

std::string memory_shortage(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank,
                            const MemoryPlan& memory) {
  const int64_t room = target.bytes_of_rank();
  const int64_t peak = memory.total();
  if (peak <= room) return "";
  std::string text = fmt::format("Does not fit: {} are missing on {}. ", bytes_text(peak - room), share_of(target));
  const int64_t state = memory[MemoryClass::weights] + memory[MemoryClass::gradients] + memory[MemoryClass::master] +
                        memory[MemoryClass::optimizer];
  text += fmt::format("A rank takes {}, {} of it weights, gradients and optimizer state", bytes_text(peak),
                      bytes_text(state));
  // Of the rank that takes the most then: with another recomputation it may be one of another stage.
  const int64_t stage = make_mesh(config, world_size).coordinates(rank)[MeshAxis::pipeline];
  const auto bytes_with = [&](const RunConfig& changed) {
    return largest_rank_bytes(changed, target, world_size, stage);
  };
  const int64_t on_host = memory.total(MemoryPlace::host);
  const auto verdict = [&](const RankBytes& bytes) {
    const int64_t more_on_host = bytes.on_host - on_host;
    return fmt::format("{}{}{}", bytes_text(bytes.on_device), bytes.on_device <= room ? ", which fits" : "",
                       more_on_host > 0 ? fmt::format("; and {} of the host's memory", bytes_text(more_on_host)) : "");
  };
  std::vector<Remedy> remedies;
  const int64_t noticed = peak - (peak - room) / 100;
  const bool others_fit = peak - memory[MemoryClass::activations] < room;
  for (Remedy& remedy : Remedies(config, target, world_size).possible()) {
    const std::optional<RunConfig> changed = changed_by(remedy, config, world_size);
    if (!changed || (remedy.fills && !others_fit)) continue;
    remedy.bytes = bytes_with(*changed);
    if (remedy.bytes.on_device >= (remedy.fills ? room + 1 : noticed)) continue;
    if (target.host_bytes > 0 && remedy.bytes.on_host > target.host_bytes) continue;
    remedies.push_back(std::move(remedy));
  }
  std::stable_sort(remedies.begin(), remedies.end(),
                   [](const Remedy& a, const Remedy& b) { return a.bytes.on_device < b.bytes.on_device; });
  text += remedies.empty() ? "." : "; with one of these settings:";
  for (const Remedy& remedy : remedies)
    text += fmt::format("\n  {}: {}", remedy.setting, verdict(remedy.bytes));
  int64_t least = remedies.empty() ? peak : remedies.front().bytes.on_device;
  const Together all = together(remedies, config, world_size);
  if (all.count > 1) {
    const RankBytes bytes = bytes_with(all.config);
    least = std::min(least, bytes.on_device);
    text += fmt::format("\n  with all {}: {}", all.others.empty() ? "of them" : "but " + join(all.others, " and "),
                        verdict(bytes));
  }
  if (least > room) text += "\nMore ranks with parallel.tensor or parallel.zero share it, or choose a smaller model.";
  return text;
}

std::string host_shortage(const HostMemoryUse& use, int64_t host_bytes) {
  const int64_t total = use.total();
  if (host_bytes == 0 || total <= host_bytes) return "";
  std::string text = fmt::format("Does not fit into the host's memory: {} are missing. Beside their devices the {} of "
                                 "the machine would take {} of the {} that it has, most of it pinned:",
                                 bytes_text(total - host_bytes), format_counted(use.ranks, "rank"), bytes_text(total),
                                 bytes_text(host_bytes));
  std::vector<size_t> classes;
  for (size_t c = 0; c < num_memory_classes; ++c)
    if (use.bytes[c] > 0) classes.push_back(c);
  std::stable_sort(classes.begin(), classes.end(), [&](size_t a, size_t b) { return use.bytes[a] > use.bytes[b]; });
  for (const size_t c : classes)
    text += fmt::format("\n  {} for {}", bytes_text(use.bytes[c]), host_remedy(static_cast<MemoryClass>(c)));
  return text;
}

}  // namespace gptrain
