#include "fit/fixed_choices.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "parallel/make_stages.h"
#include "parallel/state_layout.h"
#include "schedule/offload.h"

namespace gptrain::inline fit {
namespace {

// Makes each stage offload `offloaded` blocks (a number or "all"), spread evenly.
UnitChoices with_offloaded(const StepConfig& config, UnitChoices choices, OffloadChoice offloaded) {
  if (!offloaded.any()) return choices;
  const int64_t count = offloaded == offload::all ? config.model.num_layers : offloaded.blocks();
  for (int64_t stage = 0; stage < config.parallel.pipeline; ++stage) {
    const Stages stages = make_stages(config, stage, config.batch.accumulation, false);
    const EvenOffload even = spread_evenly(stages, count);
    for (const int32_t unit : even.units) choices[unit].offload = even.offload;
  }
  return choices;
}

// Returns the rows of logits that exist at a time. Each chunk reads and writes the head's whole f32 gradient, so larger
// chunks move fewer bytes. On a GPU, with its fast products, this is noticeable (tests/bench/NOTES.md).
int64_t loss_chunk_tokens(const MemoryConfig& memory, const Target& target) {
  if (memory.loss_chunk_tokens > 0) return memory.loss_chunk_tokens;
  return target.kind == Target::Kind::gpu ? 8192 : 2048;
}

// Returns a warning if copies to the host save nothing on the target, else an empty string.
std::string warning_of_useless_copies(OffloadChoice choice, const Target& target) {
  const bool copies = choice == offload::all || (choice.is_number() && choice.any());
  if (target.kind != Target::Kind::cpu || !copies) return {};
  return fmt::format(
      "{} = {}: on the CPU, activations are in the host's memory already; copies "
      "take memory and time and save none (try \"none\")",
      offload_key, choice == offload::all ? "\"all\"" : offload_name(choice));
}

// Returns the warning about settings that a run refuses, or that do no good; an empty string if there are none.
std::string warning_of(const MemoryConfig& memory, const Target& target) {
  if (memory.delays_updates())
    return "memory.offload_update = \"delayed\": each step computes with weights that lack the last update, which "
           "changes what is trained";
  if (target.kind == Target::Kind::cpu || !memory.keeps_state_away())
    return warning_of_useless_copies(memory.offload, target);
  return {};  // choose_step warns of places that only plans know
}

// Returns the places of the optimizer's state by unit; empty: all in memory. The first units stay in memory, so that
// the next step may begin with them at once.
std::vector<MemoryPlace> state_places(const MemoryConfig& memory, size_t num_units) {
  if (!memory.keeps_state_away()) return {};
  std::vector<MemoryPlace> places(num_units, memory.away_place());
  const auto at_home = static_cast<size_t>((1 - memory.offload_optimizer_share) * static_cast<double>(num_units));
  std::fill_n(places.begin(), at_home, MemoryPlace::device);
  return places;
}

}  // namespace

RunConfig with_offloaded_blocks(RunConfig config, int64_t blocks) {
  config.memory.offload = OffloadChoice::of_blocks(blocks);
  return config;
}

UnitChoices fixed_units(const RunConfig& config) {
  UnitChoices choices(static_cast<size_t>(config.model.num_layers) + 2);
  const RecomputeKind kind = config.memory.recompute;
  if (kind == RecomputeKind::optimal) throw std::logic_error("memory.recompute = optimal needs a search");
  if (config.memory.offload == offload::hidden) throw std::logic_error("offload = hidden needs a number of blocks");
  if (kind == RecomputeKind::none) return with_offloaded(config, std::move(choices), config.memory.offload);
  const int64_t interval = kind == RecomputeKind::every_nth ? config.memory.recompute_interval : 1;
  const bool saves_part = kind == RecomputeKind::selective || kind == RecomputeKind::ffn;
  for (int64_t layer = 0; layer < config.model.num_layers; layer += interval)
    choices[static_cast<size_t>(layer) + 1] = {saves_part, static_cast<int32_t>(layer) + 1};
  return with_offloaded(config, std::move(choices), config.memory.offload);
}

LayerChoices layer_choices(const MemoryConfig& memory, const Target& target) {
  return {.loss_chunk_tokens = loss_chunk_tokens(memory, target),
          .code_bits = memory.activation_bits < 16 ? static_cast<int>(memory.activation_bits) : 0,
          .input_codec = memory.saved_inputs == 8 ? Codec::blocks : Codec::plain,
          .projection = memory.linear_projection,
          .saved_part = memory.recompute == RecomputeKind::ffn ? SavedPart::attention : SavedPart::products};
}

StepChoices choices_with(const MemoryConfig& memory, const Target& target, UnitChoices units) {
  std::vector<MemoryPlace> optimizer_state = state_places(memory, units.size());
  return {.units = std::move(units),
          .weights = memory.offload_parameters != StatePlace::none ? Residency::away : Residency::resident,
          .gradients_away = memory.offload_gradients != StatePlace::none,
          .optimizer_state = std::move(optimizer_state),
          .landed_units = memory.disk_units > 0 ? memory.disk_units : StateLayout::least_landed,
          .clones_files = memory.clones_files,
          .updates_delayed = memory.delays_updates(),
          .backward_recomputes = backward_recomputes(memory.recompute),
          .layers = layer_choices(memory, target),
          .warning = warning_of(memory, target)};
}

StepPlan plan_fixed(const PlanCase& run, int64_t rank) {
  return plan_step(run, choices_with(run.config.memory, run.target, fixed_units(run.config)), rank);
}

}  // namespace gptrain::fit
