#include "fit/fixed_choices.h"

#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <utility>

#include "parallel/make_stages.h"
#include "schedule/offload.h"

namespace gptrain::inline fit {
namespace {

// Makes each stage offload `offloaded` blocks (a number or "all"), spread evenly.
UnitChoices with_offloaded(const RunConfig& config, UnitChoices choices, OffloadChoice offloaded) {
  if (!offloaded.any()) return choices;
  const int64_t count = offloaded == offload::all ? config.model.num_layers : offloaded.blocks();
  for (int64_t stage = 0; stage < config.parallel.pipeline; ++stage) {
    const Stages stages = make_stages(config, stage, config.batch.accumulation, false);
    const EvenOffload even = spread_evenly(stages, count);
    for (const int32_t unit : even.units) choices[static_cast<size_t>(unit)].offload = even.offload;
  }
  return choices;
}

// Returns the rows of logits that exist at a time. Each chunk reads and writes the head's whole f32 gradient, so larger
// chunks move fewer bytes. On a GPU, with its fast products, this is noticeable (tests/bench/NOTES.md).
int64_t loss_chunk_tokens(const RunConfig& config, const Target& target) {
  if (config.memory.loss_chunk_tokens > 0) return config.memory.loss_chunk_tokens;
  return target.kind == Target::Kind::gpu ? 8192 : 2048;
}

// Returns a warning if copies to the host save nothing on the target, else an empty string.
std::string warning_of_useless_copies(const RunConfig& config, const Target& target) {
  const OffloadChoice choice = config.memory.offload;
  const bool copies = choice == offload::all || (choice.is_number() && choice.any());
  if (target.kind != Target::Kind::cpu || !copies) return {};
  return fmt::format(
      "memory.offload_activations = {}: on the CPU, activations are in the host's memory already; copies "
      "take memory and time and save none (try \"none\")",
      choice == offload::all ? "\"all\"" : offload_name(choice));
}

}  // namespace

UnitChoices fixed_units(const RunConfig& config) {
  UnitChoices choices(static_cast<size_t>(config.model.num_layers) + 2);
  const RecomputeKind kind = config.memory.recompute;
  if (kind == RecomputeKind::optimal) throw std::logic_error("memory.recompute = optimal needs a search");
  if (config.memory.offload == offload::hidden) throw std::logic_error("offload = hidden needs a number of blocks");
  if (kind == RecomputeKind::none) return with_offloaded(config, std::move(choices), config.memory.offload);
  const int64_t interval = kind == RecomputeKind::every_nth ? config.memory.recompute_interval : 1;
  for (int64_t layer = 0; layer < config.model.num_layers; layer += interval)
    choices[static_cast<size_t>(layer) + 1] = {kind == RecomputeKind::selective, static_cast<int32_t>(layer) + 1};
  return with_offloaded(config, std::move(choices), config.memory.offload);
}

StepChoices choices_with(const RunConfig& config, const Target& target, UnitChoices units) {
  const MemoryConfig& memory = config.memory;
  return {.units = std::move(units),
          .backward_runs_again = backward_runs_again(memory.recompute),
          .loss_chunk_tokens = loss_chunk_tokens(config, target),
          .code_bits = memory.activation_bits < 16 ? static_cast<int>(memory.activation_bits) : 0,
          .codes_inputs = memory.saved_inputs == 8,
          .projection = memory.linear_projection,
          .warning = warning_of_useless_copies(config, target)};
}

StepPlan plan_fixed(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank) {
  return plan_step(config, target, choices_with(config, target, fixed_units(config)), world_size, rank);
}

}  // namespace gptrain::fit
