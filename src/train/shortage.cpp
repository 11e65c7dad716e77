#include "train/shortage.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <string_view>
#include <vector>

#include "report/text_parts.h"
#include "train/plan_step.h"

namespace gptrain {
namespace {

// With more rows of logits than this, no device is noticeably faster.
constexpr int64_t small_chunk = 2048;

using Change = std::function<void(RunConfig&)>;

// A setting that may shrink a plan.
struct Remedy {
  std::string setting;
  Change change;
  int64_t peak_bytes = 0;  // with it
  int64_t host_bytes = 0;  // likewise, on the host
};

std::vector<Remedy> possible_remedies(const RunConfig& config, const Target& target, int64_t world_size) {
  std::vector<Remedy> remedies;
  const auto add = [&](std::string setting, Change change) {
    remedies.push_back({std::move(setting), std::move(change)});
  };
  if (config.memory.recompute == RecomputeKind::none)
    add("memory.recompute = \"selective\"", [](RunConfig& run) { run.memory.recompute = RecomputeKind::selective; });
  if (config.memory.recompute != RecomputeKind::block && config.memory.offload_activations != optimal_offload)
    add("memory.recompute = \"block\"", [](RunConfig& run) { run.memory.recompute = RecomputeKind::block; });
  if (target.kind == Target::Kind::gpu && config.memory.recompute != RecomputeKind::optimal)
    add("memory.offload_activations = \"all\"", [](RunConfig& run) { run.memory.offload_activations = all_offload; });
  if (config.batch.micro > 1) {
    int64_t smaller = config.batch.micro / 2;
    while (config.batch.micro % smaller != 0) --smaller;
    add(fmt::format("batch.micro = {} instead of {}", smaller, config.batch.micro), [smaller](RunConfig& run) {
      run.batch.accumulation *= run.batch.micro / smaller;
      run.batch.micro = smaller;
    });
  }
  if (config.precision.compute == DType::f32) {
    const DType narrow = target.bf16_products ? DType::bf16 : DType::f16;
    add(fmt::format("precision.compute = \"{}\"", target.bf16_products ? "bf16" : "fp16"),
        [narrow](RunConfig& run) { run.precision.compute = run.precision.residual = run.precision.linears = narrow; });
  }
  if (config.precision.compute == DType::bf16 && !config.precision.pure)
    add("precision.compute = \"bf16-pure\"", [](RunConfig& run) { run.precision.pure = true; });
  const auto& types = types_with_bf16_gradients;
  if (config.precision.pure && config.precision.gradients == DType::f32 && config.optimizer.ema == 0 &&
      std::find(types.begin(), types.end(), config.optimizer.type) != types.end())
    add("precision.gradients = \"bf16\"", [](RunConfig& run) { run.precision.gradients = DType::bf16; });
  if (config.memory.loss_chunk_tokens > small_chunk ||
      (config.memory.loss_chunk_tokens == 0 && target.kind == Target::Kind::gpu))
    add(fmt::format("memory.loss_chunk_tokens = {}", small_chunk),
        [](RunConfig& run) { run.memory.loss_chunk_tokens = small_chunk; });
  if (config.checkpoint.keeps_snapshot() && host_place(target) == MemoryPlace::device)
    add("checkpoint.asynchronous = false", [](RunConfig& run) { run.checkpoint.asynchronous = false; });
  if (world_size > config.parallel.tensor * config.parallel.pipeline)
    for (int64_t stage = config.parallel.zero + 1; stage <= 3; ++stage)
      add(fmt::format("parallel.zero = {}", stage), [stage](RunConfig& run) { run.parallel.zero = stage; });
  return remedies;
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
  const auto plan_with = [&](const RunConfig& changed) {
    return plan_step(changed, target, world_size, rank).memory().arenas;
  };
  const auto verdict = [&](int64_t bytes, int64_t more_on_host) {
    return fmt::format("{}{}{}", bytes_text(bytes), bytes <= room ? ", which fits" : "",
                       more_on_host > 0 ? fmt::format("; and {} of the host's memory", bytes_text(more_on_host)) : "");
  };
  const int64_t on_host = memory.total(MemoryPlace::host);
  RunConfig all = config;
  std::vector<Remedy> remedies;
  for (Remedy& remedy : possible_remedies(config, target, world_size)) {
    RunConfig changed = config;
    remedy.change(changed);
    const MemoryPlan smaller = plan_with(changed);
    remedy.peak_bytes = smaller.total();
    remedy.host_bytes = smaller.total(MemoryPlace::host);
    if (remedy.peak_bytes >= peak || (target.host_bytes > 0 && remedy.host_bytes > target.host_bytes)) continue;
    remedy.change(all);
    remedies.push_back(std::move(remedy));
  }
  std::stable_sort(remedies.begin(), remedies.end(),
                   [](const Remedy& a, const Remedy& b) { return a.peak_bytes < b.peak_bytes; });
  text += remedies.empty() ? "." : "; with one of these settings:";
  for (const Remedy& remedy : remedies)
    text += fmt::format("\n  {}: {}", remedy.setting, verdict(remedy.peak_bytes, remedy.host_bytes - on_host));
  int64_t least = remedies.empty() ? peak : remedies.front().peak_bytes;
  if (remedies.size() > 1) {
    const MemoryPlan smallest = plan_with(all);
    least = smallest.total();
    text += fmt::format("\n  with all of them: {}", verdict(least, smallest.total(MemoryPlace::host) - on_host));
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
