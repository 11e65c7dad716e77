#include "fit/shortage.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_array.h"
#include "base/text_parts.h"
#include "config/axis_sizes.h"
#include "config/faults.h"
#include "config/load.h"
#include "config/parallelism.h"
#include "fit/plan_world.h"
#include "fit/recompute_costs.h"
#include "fit/saving_methods.h"
#include "fit/step_times.h"
#include "model/spec/layer_kinds.h"

namespace gptrain::inline fit {
namespace {

// Rows of logits per chunk above which no device is noticeably faster.
constexpr int64_t small_chunk = 2048;

using Change = std::function<void(RunConfig&)>;

struct Bytes {
  int64_t on_device = 0;  // most of a rank
  int64_t on_host = 0;    // most of the ranks of a node together
  bool is_about = false;  // planned with fewer micro-batches
};

// How a setting affects the trained model, mildest first. A combination has its members' strongest effect.
enum class Outcome : uint8_t { exact, rounding, changed };
constexpr EnumArray<Outcome, std::string_view, 3> outcome_texts = {"exact", "exact but for rounding",
                                                                   "changes training"};

// A setting that may save memory.
struct Remedy {
  std::string setting;
  Change change;
  Outcome outcome;
  // The setting uses all free memory. Offered only if it fits, and never combined with others.
  bool uses_all_free_memory = false;
  bool overfills_host = false;      // combined with others, it exceeds the host's memory
  bool one_of_several = false;      // one of several values of a key: print the first that fits, else the last
  bool adds_communication = false;  // ranks exchange more, in time that price() does not count
  Bytes bytes = {};                 // memory with the setting

  std::string key() const { return setting.substr(0, setting.find(' ')); }
};

class Remedies {
 public:
  explicit Remedies(const PlanCase& run) : run_(run), step_(run.config), target_(run.target) {}

  std::vector<Remedy> possible() {
    add_recomputation();
    add_batch();
    add_places();
    add_precision();
    add_saved();
    add_the_rest();
    return std::move(remedies_);
  }

 private:
  void add(std::string setting, Outcome outcome, Change change, bool uses_all_free_memory = false) {
    remedies_.push_back({std::move(setting), std::move(change), outcome, uses_all_free_memory});
  }

  // Only "selective" may differ in bits from the other values: if they compute the activation inside a matrix product.
  Outcome outcome_of(RecomputeKind kind) const {
    const bool changes_kind =
        (kind == RecomputeKind::selective) != (run_.config.memory.recompute == RecomputeKind::selective);
    return changes_kind && fuses_activations(step_, target_) ? Outcome::rounding : Outcome::exact;
  }

  // Returns resets of keys that other values of memory.recompute exclude, for display behind a setting.
  std::string resets() const {
    if (run_.config.memory.recompute == RecomputeKind::every_nth) return ", memory.recompute_interval = null";
    return run_.config.memory.recompute == RecomputeKind::optimal ? ", memory.activation_budget = null" : "";
  }

  void add_recomputation() {
    const MemoryConfig& memory = run_.config.memory;
    const bool is_gpu = target_.kind == Target::Kind::gpu;
    const bool is_optimal = memory.recompute == RecomputeKind::optimal;
    if (memory.recompute == RecomputeKind::none)
      add("memory.recompute = \"selective\"", outcome_of(RecomputeKind::selective),
          [](RunConfig& run) { run.memory.recompute = RecomputeKind::selective; });
    if ((memory.recompute == RecomputeKind::none || memory.recompute == RecomputeKind::selective) &&
        attention_outweighs_ffn(step_.model))
      add("memory.recompute = \"ffn\"", outcome_of(RecomputeKind::ffn),
          [](RunConfig& run) { run.memory.recompute = RecomputeKind::ffn; });
    if (memory.recompute != RecomputeKind::block && memory.offload != offload::optimal)
      add("memory.recompute = \"block\"" + resets(), outcome_of(RecomputeKind::block),
          [](RunConfig& run) { run.memory.recompute = RecomputeKind::block; });
    if (is_gpu && !is_optimal)
      add(fmt::format("{} = \"all\"", offload_key), Outcome::exact,
          [](RunConfig& run) { run.memory.offload = offload::all; });
    if (is_optimal && memory.activation_budget > 0)
      add(
          "memory.activation_budget = \"fit\"", Outcome::exact,
          [](RunConfig& run) { run.memory.activation_budget = 0; }, true);
    const bool offloads = memory.offload != offload::none;
    if (is_gpu && is_optimal && !offloads) {
      const std::string_view budget = memory.activation_budget > 0 ? ", memory.activation_budget = \"fit\"" : "";
      add(
          fmt::format("{} = \"optimal\"{}", offload_key, budget), Outcome::exact,
          [](RunConfig& run) {
            run.memory.offload = offload::optimal;
            run.memory.activation_budget = 0;
          },
          true);
    }
    if (is_optimal) return;
    const std::string copied =
        offloads ? fmt::format(", {} = \"{}\"", offload_key, is_gpu ? "optimal" : "none") : std::string();
    add(
        fmt::format("memory.recompute = \"optimal\"{}{}", resets(), copied), outcome_of(RecomputeKind::optimal),
        [=](RunConfig& run) {
          run.memory.recompute = RecomputeKind::optimal;
          run.memory.offload = offloads && is_gpu ? offload::optimal : offload::none;
        },
        true);
  }

  void add_batch() {
    const int64_t micro = step_.batch.micro;
    for (int64_t smaller = micro / 2; smaller > 0; --smaller) {
      const auto change = [smaller](RunConfig& run) {
        run.batch.accumulation *= run.batch.micro / smaller;
        run.batch.micro = smaller;
      };
      RunConfig changed = run_.config;
      if (micro % smaller == 0) change(changed);
      if (micro % smaller != 0 || !with_derived_values(changed, run_.world_size)) continue;
      add(fmt::format("batch.micro = {} instead of {}", smaller, micro), Outcome::rounding, change);
      remedies_.back().one_of_several = true;
    }
  }

  // Weights and gradients could follow, but their copies would take time in each micro-batch.
  void add_places() {
    if (has_untried_host(step_, run_.config.memory, target_))
      add("memory.offload_optimizer = \"host\"", Outcome::exact,
          [](RunConfig& run) { run.memory.offload_optimizer = StatePlace::host; });
  }

  void add_precision() {
    const PrecisionConfig& precision = step_.precision;
    const OptimizerKind optimizer = step_.optimizer.type;
    if (precision.compute == DType::f32) {
      const DType narrow = target_.bf16_products ? DType::bf16 : DType::f16;
      add(fmt::format("precision.compute = \"{}\"", target_.bf16_products ? "bf16" : "fp16"), Outcome::changed,
          [narrow](RunConfig& run) {
            PrecisionConfig& all = run.precision;
            all.compute = all.residual = all.linears = all.weight_gradients = narrow;
          });
    }
    if (precision.compute == DType::bf16 && !precision.pure)
      add("precision.compute = \"bf16-pure\"", Outcome::changed, [](RunConfig& run) { run.precision.pure = true; });
    if (precision.pure && precision.gradients == DType::f32)
      add("precision.gradients = \"bf16\"", Outcome::changed,
          [](RunConfig& run) { run.precision.gradients = DType::bf16; });
    if (optimizer == OptimizerKind::adamw)
      add("optimizer.type = \"adamw-8bit\"", Outcome::changed,
          [](RunConfig& run) { run.optimizer.type = OptimizerKind::adamw_8bit; });
  }

  void add_saved() {
    constexpr int64_t code_bits = 3;  // keeps the loss nearly the same
    if (run_.config.memory.activation_bits > code_bits)
      add(fmt::format("memory.activation_bits = {}", code_bits), Outcome::changed,
          [](RunConfig& run) { run.memory.activation_bits = code_bits; });
    if (run_.config.memory.saved_inputs == 16)
      add("memory.saved_inputs = 8", Outcome::changed, [](RunConfig& run) { run.memory.saved_inputs = 8; });
    const int64_t chunk = run_.config.memory.loss_chunk_tokens;
    if (chunk > small_chunk || (chunk == 0 && target_.kind == Target::Kind::gpu))
      add(fmt::format("memory.loss_chunk_tokens = {}", small_chunk), Outcome::rounding,
          [](RunConfig& run) { run.memory.loss_chunk_tokens = small_chunk; });
  }

  void add_the_rest() {
    if (run_.config.checkpoint.keeps_snapshot() && host_place(target_) == MemoryPlace::device)
      add("checkpoint.asynchronous = false", Outcome::exact,
          [](RunConfig& run) { run.checkpoint.asynchronous = false; });
    if (replicas_of_parameters(step_.parallel, run_.world_size) > 1)
      for (int64_t stage = step_.parallel.zero + 1; stage <= 3; ++stage) {
        // ZeRO 2 and 3 add up gradients in another order.
        const bool same_order = cuts_gradients(stage) == cuts_gradients(step_.parallel.zero);
        add(fmt::format("parallel.zero = {}", stage), same_order ? Outcome::exact : Outcome::rounding,
            [stage](RunConfig& run) { run.parallel.zero = stage; });
        remedies_.back().adds_communication = cuts_gradients(stage);
      }
  }

  const PlanCase& run_;
  const StepConfig& step_;
  const Target& target_;
  std::vector<Remedy> remedies_;
};

// Returns the config with the remedy, checked by all rules; none if a rule forbids it.
std::optional<RunConfig> changed_by(const Remedy& remedy, RunConfig config, int64_t world_size) {
  remedy.change(config);
  return with_derived_values(std::move(config), world_size);
}

// Remedies that can be applied at once, at most one for each key.
struct Combination {
  RunConfig config;
  std::vector<Remedy*> remedies;
  std::vector<std::string> others;  // settings that are not part of it
};

// Adds the remedies one by one, so the first have priority.
Combination combine(std::vector<Remedy>& remedies, const PlanCase& run) {
  Combination all{run.config, {}, {}};
  std::set<std::string> keys;
  for (Remedy& remedy : remedies) {
    const std::string key = remedy.key();
    const bool has_place = !remedy.uses_all_free_memory && !remedy.overfills_host && !keys.contains(key);
    if (std::optional<RunConfig> more = has_place ? changed_by(remedy, all.config, run.world_size) : std::nullopt) {
      all.config = std::move(*more);
      keys.insert(key);
      all.remedies.push_back(&remedy);
    } else {
      all.others.push_back(remedy.setting);
    }
  }
  return all;
}

std::string share_of(const Target& target) {
  if (target.sharing == 1) return target.name;
  return fmt::format("{} for each of the {} ranks that share it", target.name, target.sharing);
}

// Makes the message for a largest rank that does not fit its device.
class DeviceShortage {
 public:
  DeviceShortage(const PlanCase& run, const WorldMemory& world, const HostMemoryUse& use)
      : run_(run),
        world_(world),
        mesh_(make_mesh(run.config, run.world_size)),
        device_bytes_(run.target.bytes_of_rank()),
        peak_(world.largest.total()),
        use_(use),
        seconds_now_(seconds_of(run.config)) {}

  std::string text() {
    const MemoryPlan& memory = world_.largest;
    const int64_t state = memory[MemoryClass::weights] + memory[MemoryClass::gradients] + memory[MemoryClass::master] +
                          memory[MemoryClass::optimizer];
    const std::string missing = bytes_text(peak_ - device_bytes_);
    std::string text = fmt::format("Does not fit: {} are missing on {}. ", missing, share_of(run_.target));
    text += fmt::format("A rank takes {}, {} of it weights, gradients and optimizer state", bytes_text(peak_),
                        bytes_text(state));
    std::vector<Remedy> remedies = helpful();
    text += remedies.empty() ? "." : "; with one of these settings:";
    for (const Remedy& remedy : remedies)
      text += fmt::format("\n  {}: {}; {}", remedy.setting, verdict(remedy.bytes), price_of(remedy));
    int64_t least = remedies.empty() ? peak_ : remedies.front().bytes.on_device;
    Combination all = combine(remedies, run_);
    Bytes bytes = all.remedies.size() > 1 ? bytes_with(all.config) : Bytes();
    // The host holds each remedy by itself, but maybe not all of them.
    while (all.remedies.size() > 1 && !host_holds(bytes)) {
      Remedy& most = **std::max_element(all.remedies.begin(), all.remedies.end(), [](const Remedy* a, const Remedy* b) {
        return a->bytes.on_host < b->bytes.on_host;
      });
      if (most.bytes.on_host <= use_.total()) break;
      most.overfills_host = true;
      all = combine(remedies, run_);
      bytes = bytes_with(all.config);
    }
    if (all.remedies.size() > 1) {
      least = std::min(least, bytes.on_device);
      text +=
          fmt::format("\n  with all {}: {}; {}", all.others.empty() ? "of them" : "but " + join(all.others, " and "),
                      verdict(bytes), price_of(all));
    }
    return text + (least <= device_bytes_
                       ? "\nFor the fastest layout that fits, run gptrain plan; --methods also compares settings that "
                         "change training."
                       : "\nSplit the model over more ranks with parallel.tensor or parallel.zero, or choose a smaller "
                         "model.");
  }

 private:
  // Returns the bytes of the rank that takes the most with this config, which may be on another stage than before.
  // Estimates those of a step with very many passes, unless that leaves open whether it fits.
  Bytes bytes_with(const RunConfig& changed) const {
    constexpr int64_t most_passes = 5'000;
    constexpr double open_share = 0.03;
    const ParallelConfig& parallel = changed.parallel;
    if (parallel.pipeline * parallel.virtual_stages * changed.batch.accumulation <= most_passes)
      return planned(changed);
    Bytes bytes = of_ranks(estimate_rank_bytes({changed, run_.target, run_.world_size}));
    const auto device = static_cast<double>(device_bytes_);
    if (std::abs(static_cast<double>(bytes.on_device) - device) < open_share * device) return planned(changed);
    bytes.is_about = true;
    return bytes;
  }

  Bytes planned(const RunConfig& config) const {
    return of_ranks(largest_rank_bytes({config, run_.target, run_.world_size}, mesh_.stage_of(world_.largest_rank)));
  }

  Bytes of_ranks(const RankBytes& bytes) const {
    return {.on_device = bytes.on_device, .on_host = fullest_host(bytes.on_host, mesh_, world_.node_of_rank).total()};
  }

  bool host_holds(const Bytes& bytes) const {
    return run_.target.host_bytes == 0 || bytes.on_host <= run_.target.host_bytes;
  }

  std::string verdict(const Bytes& bytes) const {
    std::string text = fmt::format("{}{}", bytes.is_about ? "~" : "", bytes_text(bytes.on_device));
    if (bytes.on_device <= device_bytes_)
      text += host_holds(bytes) ? ", which fits" : ", which fits the device but not the host";
    const int64_t more_on_host = bytes.on_host - use_.total();
    if (more_on_host <= 0) return text;
    text += fmt::format("; and {} of the host's memory", bytes_text(more_on_host));
    return use_.ranks > 1 ? text + fmt::format(" for the {} ranks of a node", use_.ranks) : text;
  }

  // Describes the effect on training and on the time of a step.
  std::string price(Outcome outcome, bool adds_communication, const RunConfig& changed) const {
    const double ratio = seconds_of(changed) / seconds_now_;
    const std::string text = fmt::format("{:.2f}", ratio);
    return fmt::format("{}, a step {}{}", outcome_texts[outcome], text == "1.00" ? "as long" : text + " times as long",
                       adds_communication ? ", but ranks exchange more" : "");
  }

  std::string price_of(const Remedy& remedy) const {
    return price(remedy.outcome, remedy.adds_communication, changed_by(remedy, run_.config, run_.world_size).value());
  }

  std::string price_of(const Combination& all) const {
    Outcome worst = Outcome::exact;
    bool adds_communication = false;
    for (const Remedy* const remedy : all.remedies) {
      worst = std::max(worst, remedy->outcome);
      adds_communication |= remedy->adds_communication;
    }
    return price(worst, adds_communication, all.config);
  }

  double seconds_of(const RunConfig& config) const {
    const int64_t stage = mesh_.stage_of(world_.largest_rank);
    return nominal_step_seconds({config, run_.target, run_.world_size}, static_cast<int32_t>(stage));
  }

  // Returns the remedies that save memory, the one with the fewest bytes first.
  std::vector<Remedy> helpful() const {
    std::vector<Remedy> remedies;
    const int64_t worth_a_line = peak_ - (peak_ - device_bytes_) / 100;
    const bool others_fit = peak_ - world_.largest[MemoryClass::activations] < device_bytes_;
    for (Remedy& remedy : Remedies(run_).possible()) {
      const std::optional<RunConfig> changed = changed_by(remedy, run_.config, run_.world_size);
      if (!changed || (remedy.uses_all_free_memory && !others_fit)) continue;
      if (remedy.one_of_several && !remedies.empty() && remedies.back().one_of_several &&
          remedies.back().bytes.on_device <= device_bytes_)
        continue;
      remedy.bytes = bytes_with(*changed);
      if (remedy.bytes.on_device >= (remedy.uses_all_free_memory ? device_bytes_ + 1 : worth_a_line)) continue;
      // If the host lacks memory already, host_shortage says so; drop only remedies that need more of it.
      if (!host_holds(remedy.bytes) && remedy.bytes.on_host > use_.total()) continue;
      if (remedy.one_of_several && !remedies.empty() && remedies.back().one_of_several) remedies.pop_back();
      remedies.push_back(std::move(remedy));
    }
    std::stable_sort(remedies.begin(), remedies.end(),
                     [](const Remedy& a, const Remedy& b) { return a.bytes.on_device < b.bytes.on_device; });
    return remedies;
  }

  const PlanCase& run_;
  const WorldMemory& world_;
  const Mesh mesh_;
  const int64_t device_bytes_, peak_;
  const HostMemoryUse& use_;
  const double seconds_now_;
};

// Names the setting that uses a class of host memory, and values that take less.
std::string host_remedy(const MemoryConfig& memory, int64_t micro_batch, MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::offloaded: {
      const bool has_smaller = memory.offload != offload::optimal && offload_name(memory.offload) != "1";
      return fmt::format("{}; {}", offload_key,
                         has_smaller ? "a smaller number of blocks, or \"none\", takes less" : "\"none\" takes none");
    }
    case MemoryClass::snapshot:
      return "checkpoint.asynchronous; false takes none";
    case MemoryClass::samples:
      return "run.sample_every_steps; 0 takes none";
    case MemoryClass::data:
      return micro_batch > 1 ? "micro-batches that are read ahead; a smaller batch.micro takes less"
                             : "micro-batches that are read ahead";
    case MemoryClass::master:
    case MemoryClass::optimizer:
    case MemoryClass::weights:
    case MemoryClass::gradients:
    case MemoryClass::buckets:
    case MemoryClass::workspace:
      return memory.uses_disk() ? "updates of state that is on disk" : "memory.offload_optimizer; \"disk\" takes less";
    default:
      return "communication between ranks";
  }
}

}  // namespace

WorldMemory world_memory(const std::vector<MemoryPlan>& plans, const std::vector<int64_t>& device_bytes,
                         const Mesh& mesh, std::vector<int64_t> node_of_rank) {
  const auto lack = [&](int64_t rank) { return plans[rank].total() - device_bytes[rank]; };
  WorldMemory world{.largest_rank = 0, .largest = {}, .on_host = {}, .node_of_rank = std::move(node_of_rank)};
  for (int64_t stage = 0; stage < mesh.size(MeshAxis::pipeline); ++stage) {
    for (int64_t tensor_rank = 0; tensor_rank < mesh.size(MeshAxis::tensor); ++tensor_rank) {
      const int64_t rank = mesh.first_rank_of_stage(stage, tensor_rank);
      world.on_host.push_back(plans[rank].host_memory());
      if (lack(rank) > lack(world.largest_rank)) world.largest_rank = rank;
    }
  }
  if (lack(world.largest_rank) <= 0) {
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank)
      if (lack(rank) > lack(world.largest_rank)) world.largest_rank = rank;
  }
  world.largest = plans[world.largest_rank];
  return world;
}

std::string memory_shortage(const RunConfig& config, const Target& target, const WorldMemory& world) {
  const PlanCase run{config, target, std::ssize(world.node_of_rank)};
  const Mesh mesh = make_mesh(config, run.world_size);
  const HostMemoryUse use = fullest_host(world.on_host, mesh, world.node_of_rank);
  std::string text;
  if (world.largest.total() > target.bytes_of_rank()) text = DeviceShortage(run, world, use).text();
  const std::string on_host = host_shortage(config.memory, config.batch.micro, use, target.host_bytes);
  return text + (text.empty() || on_host.empty() ? "" : "\n") + on_host;
}

std::string host_shortage(const MemoryConfig& memory, int64_t micro_batch, const HostMemoryUse& use,
                          int64_t host_bytes) {
  const int64_t total = use.total();
  if (host_bytes == 0 || total <= host_bytes) return "";
  std::string text = fmt::format(
      "Does not fit into the host's memory: {} are missing. The {} of the machine would "
      "take {} of the {} that it has, most of it pinned:",
      bytes_text(total - host_bytes), format_counted(use.ranks, "rank"), bytes_text(total), bytes_text(host_bytes));
  std::vector<size_t> classes;
  for (size_t c = 0; c < num_memory_classes; ++c)
    if (use.bytes[c] > 0) classes.push_back(c);
  std::stable_sort(classes.begin(), classes.end(), [&](size_t a, size_t b) { return use.bytes[a] > use.bytes[b]; });
  for (const size_t c : classes)
    text += fmt::format("\n  {} for {}", bytes_text(use.bytes[c]),
                        host_remedy(memory, micro_batch, static_cast<MemoryClass>(c)));
  return text;
}

}  // namespace gptrain::fit
