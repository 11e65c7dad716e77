#include "fit/recompute_costs.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "config/parallelism.h"
#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"
#include "fit/offload_plan.h"
#include "model/spec/layer_kinds.h"
#include "ops/fused_product.h"

namespace gptrain::inline fit {
namespace {

int64_t unit_bytes(const BufferBytes& bytes, BufferKind kind, int32_t unit) { return bytes[kind][unit]; }

int64_t saved_bytes(const BufferBytes& bytes, int32_t unit) {
  return unit_bytes(bytes, BufferKind::saved_for_input, unit) + unit_bytes(bytes, BufferKind::saved_for_weight, unit);
}

double seconds_of_pass(const PassSeconds& seconds, ActionKind kind, int32_t unit) {
  const auto found = seconds.find({kind, unit});
  return found == seconds.end() ? 0 : found->second;
}

double gather_seconds(const StepPlan& plan, int32_t unit, const Target& target) {
  const auto found = std::find_if(plan.log.actions.begin(), plan.log.actions.end(), [&](const LoggedAction& action) {
    return action.kind == ActionKind::gather && action.unit == unit;
  });
  if (found == plan.log.actions.end()) return 0;
  return nominal_pass_seconds(plan.log.blocks[found->block], target);
}

int64_t most_in_flight(const Stages& stages) {
  int64_t now = 0;
  int64_t most = 1;
  const std::shared_ptr<const PassLists> passes = passes_of(*stages.schedule, stages.shape);
  for (const Pass& pass : (*passes)[stages.stage]) {
    if (pass.kind == PassKind::forward) ++now;
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_input) --now;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

bool fuses_activations(const StepConfig& config, const Target& target) {
  const std::vector<LayerKind> kinds = layer_kinds(config.model).kinds;
  return std::any_of(kinds.begin(), kinds.end(), [&](const LayerKind& kind) {
    const int64_t width = kind.ffn.hidden_size / config.parallel.tensor;
    return fused_activation(config.model.activation, config.precision.compute, width, target);
  });
}

bool may_keep_parts(const StepConfig& config, const MemoryConfig& memory, const Target& target) {
  return memory.activation_bits == 16 && memory.saved_inputs == 16 && !fuses_activations(config, target);
}

bool offloads_any(const UnitChoices& choices) {
  return std::any_of(choices.begin(), choices.end(), [](const UnitChoice& choice) { return choice.offload.any(); });
}

size_t HashOfChoices::operator()(const UnitChoices& choices) const {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&](auto value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3; };
  for (const UnitChoice& choice : choices) {
    add(choice.saves_part);
    add(choice.recompute_from);
    add(choice.offload.part);
    add(choice.offload.leaves_for);
    add(choice.offload.comes_ahead);
  }
  return hash;
}

RecomputeCounts RecomputeCosts::counts(const UnitChoices& choices) const {
  const Stages& stages = whole_.options.stages;
  RecomputeCounts counts;
  for (int32_t unit = 1; unit + 1 < static_cast<int32_t>(choices.size()); ++unit) {
    if (!stages.runs(unit)) continue;
    const UnitChoice& choice = choices[unit];
    (choice.saves_part              ? counts.in_part
     : choice.recompute_from < 0    ? counts.saving_all
     : choice.recompute_from < unit ? counts.from_before
                                    : counts.alone) += 1;
    counts.offloaded += choice.offload.any() ? 1 : 0;
  }
  return counts;
}

RecomputeCosts::RecomputeCosts(const PlanCase& run, int32_t stage)
    : config_(with_enough_micro_batches(run.config)),
      target_(run.target),
      world_size_(run.world_size),
      may_offload_(run.config.memory.offload == offload::optimal && run.target.kind == Target::Kind::gpu) {
  const auto& [config, target, world_size] = run;
  rank_ = make_mesh(config, world_size).first_rank_of_stage(stage);
  const StepPlan whole = plan_fixed({config_of(RecomputeKind::block), target, world_size}, rank_);
  whole_ = {whole.design->training->schedule.options, whole.design->training->bytes};
  whole_.options.stages.shape.recompute = backward_recomputes(RecomputeKind::optimal);
  std::optional<PassSeconds> in_parts;
  if (may_keep_parts(config, config.memory, target)) {
    const StepPlan plan = plan_fixed({config_of(RecomputeKind::selective), target, world_size}, rank_);
    in_parts_ = ProgramInput{plan.design->training->schedule.options, plan.design->training->bytes};
    in_parts = nominal_pass_seconds(plan, target);
  }
  seconds_ = nominal_pass_seconds(whole, target);
  for (const auto& [action, seconds] : seconds_) work_seconds_ += is_recomputation(action.first) ? 0 : seconds;
  make_chains(whole, in_parts ? &*in_parts : nullptr);
  // Find the fewest micro-batches with which as many are in flight as in the whole step.
  const auto micro_batches = static_cast<int32_t>(config_.batch.accumulation);
  Stages stages = whole_.options.stages;
  stages.shape.micro_batches = micro_batches;
  const int64_t in_flight = most_in_flight(stages);
  for (Chain& chain : chains_) chain.in_flight = in_flight;
  // If backward-weight passes are separate, the offsets of buffers differ from one micro-batch to the next.
  const int32_t at_a_time = (stages.schedule->splits_backward ? 16 : 2) * stages.shape.stages;
  do {
    few_micro_batches_ += at_a_time;
    stages.shape.micro_batches = few_micro_batches_;
  } while (few_micro_batches_ < micro_batches && most_in_flight(stages) < in_flight);
  few_micro_batches_ = std::min(few_micro_batches_, micro_batches);
}

RunConfig RecomputeCosts::config_of(RecomputeKind kind) const {
  RunConfig config = with_few_micro_batches(config_);
  config.memory.recompute = kind;
  config.memory.offload = offload::none;
  return config;
}

ChainUnit RecomputeCosts::chain_unit(int32_t unit, const StepPlan& whole, const PassSeconds* in_parts) const {
  const UnitKind kind = whole_.options.units[unit].kind;
  const BufferBytes& bytes = whole_.bytes;
  const int64_t d_output = kind == UnitKind::head ? 0 : unit_bytes(bytes, BufferKind::stream_gradient, unit);
  const int64_t d_input = kind == UnitKind::embedding ? 0 : unit_bytes(bytes, BufferKind::stream_gradient, unit - 1);
  ChainUnit made{.output_bytes = kind == UnitKind::head ? 0 : unit_bytes(bytes, BufferKind::stream, unit),
                 .saved_bytes = kind == UnitKind::embedding ? 0 : saved_bytes(bytes, unit),
                 .backward_bytes = unit_bytes(bytes, BufferKind::gradients, unit) + d_output + d_input,
                 .forward_seconds = seconds_of_pass(seconds_, ActionKind::forward, unit),
                 .saved_seconds = seconds_of_pass(seconds_, ActionKind::recompute, unit),
                 .always_saved = kind == UnitKind::head};
  if (whole_.options.flow.gathers_weights())  // recomputation gathers the weights once more
    made.forward_seconds += gather_seconds(whole, unit, target_);
  if (in_parts == nullptr || kind != UnitKind::block) return made;
  made.part_bytes = unit_bytes(in_parts_->bytes, BufferKind::saved_for_recompute, unit);
  made.rest_bytes = saved_bytes(in_parts_->bytes, unit);
  made.rest_seconds = seconds_of_pass(*in_parts, ActionKind::recompute, unit);
  return made;
}

void RecomputeCosts::make_chains(const StepPlan& whole, const PassSeconds* in_parts) {
  const Stages& stages = whole_.options.stages;
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    if (stages.stage_of_chunk(chunk) != stages.stage) continue;
    const std::vector<int64_t>& gradients = whole_.bytes[BufferKind::stream_gradient];
    const int32_t first = stages.first_unit(chunk), end = stages.end_unit(chunk);
    Chain chain{.units = {},
                .input_bytes = first > 0 ? unit_bytes(whole_.bytes, BufferKind::stream, first - 1) : 0,
                .gradient_bytes = *std::max_element(gradients.begin(), gradients.end())};
    for (int32_t unit = first; unit < end; ++unit) {
      ChainUnit& made = chain.units.emplace_back(chain_unit(unit, whole, in_parts));
      if (!may_offload_ || whole_.options.units[unit].kind != UnitKind::block) continue;
      // Units that leave first have the most time for their copies. Rising prices also make the solver copy some of
      // equal units and recompute others.
      made.copy_seconds = nominal_copy_seconds(1, target_) * (unit - first + 1) / (end - first);
    }
    first_units_.push_back(stages.first_unit(chunk));
    chains_.push_back(std::move(chain));
  }
}

RecomputeCosts::ProgramInput RecomputeCosts::program_input(const UnitChoices& choices, int32_t micro_batches) const {
  ProgramInput made = whole_;
  made.options.micro_batches = micro_batches;
  for (size_t unit = 0; unit < choices.size(); ++unit) {
    const UnitChoice& choice = choices[unit];
    UnitTraits& traits = made.options.units[unit];
    if (choice.saves_part) {
      traits = in_parts_->options.units[unit];
      for (size_t kind = 0; kind < num_buffer_kinds; ++kind) made.bytes[kind][unit] = in_parts_->bytes[kind][unit];
    }
    set_recomputed(traits, static_cast<int32_t>(unit), choice);
    made.bytes[BufferKind::offloaded][unit] =
        traits.offload.any() ? record_bytes(made.bytes, traits, static_cast<int32_t>(unit)) : 0;
  }
  return made;
}

double RecomputeCosts::seconds_of(const Action& action, const UnitChoices& choices) const {
  if (is_recomputation(action.kind)) {
    for (size_t chain = 0; chain < chains_.size(); ++chain) {
      const int32_t index = action.unit - first_units_[chain];
      if (index < 0 || index >= static_cast<int32_t>(chains_[chain].units.size())) continue;
      const ChainUnit& unit = chains_[chain].units[index];
      if (action.kind == ActionKind::recompute_output) return unit.forward_seconds;
      return choices[action.unit].saves_part ? unit.rest_seconds : unit.saved_seconds;
    }
  }
  return seconds_of_pass(seconds_, action.kind, action.unit);
}

RecomputeCosts::Played RecomputeCosts::play(const UnitChoices& choices, int32_t micro_batches,
                                            RecomputeKind kind) const {
  ProgramInput made = program_input(choices, micro_batches);
  made.options.stages.shape.recompute = backward_recomputes(kind);
  constexpr auto activations = MemoryClass::activations;
  const auto training = make_program(training_schedule(made.options), made.bytes, MemoryPlace::pinned_host);
  made.options.micro_batches = 1;
  const auto evaluation =
      make_program(evaluation_schedule(made.options), std::move(made.bytes), MemoryPlace::pinned_host);
  return {training, std::max(training->memory[activations], evaluation->memory[activations])};
}

double RecomputeCosts::added_share(const UnitChoices& choices, const Program& training) const {
  if (!offloads_any(choices)) return recompute_share(choices);
  const PlayedPasses played = play_passes(training.schedule, training.bytes, target_,
                                          [&](const Action& action) { return seconds_of(action, choices); });
  return std::max(0.0, played.seconds / (training.schedule.options.micro_batches * work_seconds_) - 1);
}

double RecomputeCosts::recompute_share(const UnitChoices& choices) const {
  double seconds = 0;
  for (size_t chain = 0; chain < chains_.size(); ++chain) {
    UnitChoices of_chain(chains_[chain].units.size());
    for (size_t i = 0; i < of_chain.size(); ++i) {
      of_chain[i] = choices[static_cast<size_t>(first_units_[chain]) + i];
      if (of_chain[i].recompute_from >= 0) of_chain[i].recompute_from -= first_units_[chain];
    }
    seconds += recompute_seconds(chains_[chain], of_chain);
  }
  return seconds / work_seconds_;
}

RecomputePoint RecomputeCosts::cost_in_short_step(UnitChoices choices) const {
  Cost& cost = known_[choices];
  if (cost.few_bytes < 0) {
    const Played played = play(choices, few_micro_batches_);
    cost.few_bytes = played.bytes;
    cost.recompute_share = added_share(choices, *played.training);
  }
  return {std::move(choices), cost.few_bytes, cost.recompute_share};
}

RecomputePoint RecomputeCosts::of(UnitChoices choices) const {
  RecomputePoint point = cost_in_short_step(std::move(choices));
  const auto all = static_cast<int32_t>(config_.batch.accumulation);
  if (all == few_micro_batches_) return point;
  Cost& cost = known_[point.choices];
  if (cost.bytes < 0) cost.bytes = play(point.choices, all).bytes;
  point.bytes = cost.bytes;
  return point;
}

int64_t RecomputeCosts::bytes_in_order(const UnitChoices& choices, RecomputeKind kind) const {
  return play(choices, static_cast<int32_t>(config_.batch.accumulation), kind).bytes;
}

void RecomputeCosts::set_copy_times(UnitChoices& choices) const {
  const ProgramInput one = program_input(choices, 1);
  time_copies(choices, one.options, one.bytes, target_,
              [&](const Action& action) { return seconds_of(action, choices); });
}

std::optional<RecomputePoint> RecomputeCosts::selective_point() const {
  if (saves_parts() || config_.memory.activation_bits != 16 || config_.memory.saved_inputs != 16) return std::nullopt;
  const StepPlan few = plan_fixed({config_of(RecomputeKind::selective), target_, world_size_}, rank_);
  double seconds = 0;
  for (const auto& [action, of_action] : nominal_pass_seconds(few, target_)) seconds += of_action;
  RunConfig config = config_;
  config.memory.recompute = RecomputeKind::selective;
  config.memory.offload = offload::none;
  const MemoryPlan memory = plan_fixed({config, target_, world_size_}, rank_).memory().arenas;
  return RecomputePoint{{}, memory[MemoryClass::activations], seconds / work_seconds_ - 1};
}

}  // namespace gptrain::fit
