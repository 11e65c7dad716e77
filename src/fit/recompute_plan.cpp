#include "fit/recompute_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <tuple>
#include <utility>

#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"
#include "fit/nominal_times.h"
#include "fit/offload_plan.h"
#include "ops/fused_product.h"

namespace gptrain::inline fit {
namespace {

int64_t unit_bytes(const BufferBytes& bytes, BufferKind kind, int32_t unit) {
  return bytes[static_cast<size_t>(kind)][static_cast<size_t>(unit)];
}

int64_t saved_bytes(const BufferBytes& bytes, int32_t unit) {
  return unit_bytes(bytes, BufferKind::saved_for_input, unit) + unit_bytes(bytes, BufferKind::saved_for_weight, unit);
}

bool offloads_any(const UnitChoices& choices) {
  return std::any_of(choices.begin(), choices.end(), [](const UnitChoice& choice) { return choice.offload.any(); });
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
  return nominal_pass_seconds(plan.log.blocks[static_cast<size_t>(found->block)], target);
}

bool may_keep_parts(const RunConfig& config, const Target& target) {
  const int64_t width = config.model.ffn_hidden_size / config.parallel.tensor;
  return config.memory.activation_bits == 16 && config.memory.saved_inputs == 16 &&
         !fused_activation(config.model.activation, config.precision.compute, width, target);
}

// Makes `best` the candidate if that is better. Returns false if the candidate exceeds the budget.
bool take_better(RecomputePoint candidate, int64_t budget_bytes, std::optional<RecomputePoint>& best) {
  if (candidate.bytes > budget_bytes) return false;
  if (!best || std::pair(candidate.again_share, candidate.bytes) < std::pair(best->again_share, best->bytes))
    best = std::move(candidate);
  return true;
}

int64_t most_in_flight(const Stages& stages) {
  int64_t now = 0;
  int64_t most = 1;
  const std::shared_ptr<const PassLists> passes = passes_of(*stages.schedule, stages.shape);
  for (const Pass& pass : (*passes)[static_cast<size_t>(stages.stage)]) {
    if (pass.kind == PassKind::forward) ++now;
    if (pass.kind == PassKind::backward || pass.kind == PassKind::backward_input) --now;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

RecomputeCounts RecomputePlanner::counts(const UnitChoices& choices) const {
  const Stages& stages = whole_.options.stages;
  RecomputeCounts counts;
  for (int32_t unit = 1; unit + 1 < static_cast<int32_t>(choices.size()); ++unit) {
    if (!stages.runs(unit)) continue;
    const UnitChoice& choice = choices[static_cast<size_t>(unit)];
    (choice.keeps_part          ? counts.in_part
     : choice.again_from < 0    ? counts.kept
     : choice.again_from < unit ? counts.from_before
                                : counts.alone) += 1;
    counts.offloaded += choice.offload.any() ? 1 : 0;
  }
  return counts;
}

RecomputePlanner::RecomputePlanner(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage)
    : config_(with_enough_micro_batches(config)),
      target_(target),
      world_size_(world_size),
      may_offload_(config.memory.offload == offload::optimal && target.kind == Target::Kind::gpu) {
  rank_ = make_mesh(config, world_size).first_rank_of_stage(stage);
  const StepPlan whole = plan_fixed(config_of(RecomputeKind::block), target, world_size, rank_);
  whole_ = {whole.design->training->schedule.options, whole.design->training->bytes};
  whole_.options.stages.shape.recompute = backward_runs_again(RecomputeKind::optimal);
  std::optional<PassSeconds> in_parts;
  if (may_keep_parts(config, target)) {
    const StepPlan plan = plan_fixed(config_of(RecomputeKind::selective), target, world_size, rank_);
    in_parts_ = ProgramInput{plan.design->training->schedule.options, plan.design->training->bytes};
    in_parts = nominal_pass_seconds(plan, target);
  }
  seconds_ = nominal_pass_seconds(whole, target);
  for (const auto& [action, seconds] : seconds_) work_seconds_ += is_again(action.first) ? 0 : seconds;
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

RunConfig RecomputePlanner::config_of(RecomputeKind kind) const {
  RunConfig config = with_few_micro_batches(config_);
  config.memory.recompute = kind;
  config.memory.offload = offload::none;
  return config;
}

ChainUnit RecomputePlanner::chain_unit(int32_t unit, const StepPlan& whole, const PassSeconds* in_parts) const {
  const UnitKind kind = whole_.options.units[static_cast<size_t>(unit)].kind;
  const BufferBytes& bytes = whole_.bytes;
  const int64_t d_output = kind == UnitKind::head ? 0 : unit_bytes(bytes, BufferKind::stream_gradient, unit);
  const int64_t d_input = kind == UnitKind::embedding ? 0 : unit_bytes(bytes, BufferKind::stream_gradient, unit - 1);
  ChainUnit made{.output_bytes = kind == UnitKind::head ? 0 : unit_bytes(bytes, BufferKind::stream, unit),
                 .saved_bytes = kind == UnitKind::embedding ? 0 : saved_bytes(bytes, unit),
                 .backward_bytes = unit_bytes(bytes, BufferKind::gradients, unit) + d_output + d_input,
                 .forward_seconds = seconds_of_pass(seconds_, ActionKind::forward, unit),
                 .saved_seconds = seconds_of_pass(seconds_, ActionKind::recompute, unit),
                 .always_kept = kind == UnitKind::head};
  if (whole_.options.zero == 3)  // recomputation gathers the weights once more
    made.forward_seconds += gather_seconds(whole, unit, target_);
  if (in_parts == nullptr || kind != UnitKind::block) return made;
  made.part_bytes = unit_bytes(in_parts_->bytes, BufferKind::kept, unit);
  made.rest_bytes = saved_bytes(in_parts_->bytes, unit);
  made.rest_seconds = seconds_of_pass(*in_parts, ActionKind::recompute, unit);
  return made;
}

void RecomputePlanner::make_chains(const StepPlan& whole, const PassSeconds* in_parts) {
  const Stages& stages = whole_.options.stages;
  for (int32_t chunk = 0; chunk < stages.shape.chunks(); ++chunk) {
    if (stages.stage_of_chunk(chunk) != stages.stage) continue;
    const int64_t stream = unit_bytes(whole_.bytes, BufferKind::stream_gradient, 0);
    const int32_t first = stages.first_unit(chunk), end = stages.end_unit(chunk);
    Chain chain{.units = {}, .input_bytes = first > 0 ? stream : 0, .gradient_bytes = stream};
    for (int32_t unit = first; unit < end; ++unit) {
      ChainUnit& made = chain.units.emplace_back(chain_unit(unit, whole, in_parts));
      if (!may_offload_ || whole_.options.units[static_cast<size_t>(unit)].kind != UnitKind::block) continue;
      // Units that leave first have the most time for their copies. Rising prices also make the solver copy some of
      // equal units and recompute others.
      made.copy_seconds = nominal_copy_seconds(1, target_) * (unit - first + 1) / (end - first);
    }
    first_units_.push_back(stages.first_unit(chunk));
    chains_.push_back(std::move(chain));
  }
}

RecomputePlanner::ProgramInput RecomputePlanner::program_input(const UnitChoices& choices,
                                                               int32_t micro_batches) const {
  ProgramInput made = whole_;
  made.options.micro_batches = micro_batches;
  for (size_t unit = 0; unit < choices.size(); ++unit) {
    const UnitChoice& choice = choices[unit];
    UnitTraits& traits = made.options.units[unit];
    if (choice.keeps_part) {
      traits = in_parts_->options.units[unit];
      for (size_t kind = 0; kind < num_buffer_kinds; ++kind) made.bytes[kind][unit] = in_parts_->bytes[kind][unit];
    }
    set_recomputed(traits, static_cast<int32_t>(unit), choice);
    made.bytes[static_cast<size_t>(BufferKind::offloaded)][unit] =
        traits.offload.any() ? record_bytes(made.bytes, traits, static_cast<int32_t>(unit)) : 0;
  }
  return made;
}

double RecomputePlanner::seconds_of(const Action& action, const UnitChoices& choices) const {
  if (is_again(action.kind)) {
    for (size_t chain = 0; chain < chains_.size(); ++chain) {
      const int32_t index = action.unit - first_units_[chain];
      if (index < 0 || index >= static_cast<int32_t>(chains_[chain].units.size())) continue;
      const ChainUnit& unit = chains_[chain].units[static_cast<size_t>(index)];
      if (action.kind == ActionKind::forward_again) return unit.forward_seconds;
      return choices[static_cast<size_t>(action.unit)].keeps_part ? unit.rest_seconds : unit.saved_seconds;
    }
  }
  return seconds_of_pass(seconds_, action.kind, action.unit);
}

RecomputePlanner::Played RecomputePlanner::play(const UnitChoices& choices, int32_t micro_batches,
                                                RecomputeKind kind) const {
  ProgramInput made = program_input(choices, micro_batches);
  made.options.stages.shape.recompute = backward_runs_again(kind);
  constexpr auto activations = MemoryClass::activations;
  const auto training = make_program(training_schedule(made.options), made.bytes, MemoryPlace::host);
  made.options.micro_batches = 1;
  const auto evaluation = make_program(evaluation_schedule(made.options), std::move(made.bytes), MemoryPlace::host);
  return {training, std::max(training->memory[activations], evaluation->memory[activations])};
}

double RecomputePlanner::added_share(const UnitChoices& choices, const Program& training) const {
  if (!offloads_any(choices)) return again_share(choices);
  const PlayedPasses played = play_passes(training.schedule, training.bytes, target_,
                                          [&](const Action& action) { return seconds_of(action, choices); });
  return std::max(0.0, played.seconds / (training.schedule.options.micro_batches * work_seconds_) - 1);
}

double RecomputePlanner::again_share(const UnitChoices& choices) const {
  double seconds = 0;
  for (size_t chain = 0; chain < chains_.size(); ++chain) {
    UnitChoices of_chain(chains_[chain].units.size());
    for (size_t i = 0; i < of_chain.size(); ++i) {
      of_chain[i] = choices[static_cast<size_t>(first_units_[chain]) + i];
      if (of_chain[i].again_from >= 0) of_chain[i].again_from -= first_units_[chain];
    }
    seconds += seconds_again(chains_[chain], of_chain);
  }
  return seconds / work_seconds_;
}

const RecomputePoint* RecomputePlanner::find_point(const std::vector<RecomputePoint>& points,
                                                   const UnitChoices& choices) {
  const auto found =
      std::find_if(points.begin(), points.end(), [&](const RecomputePoint& point) { return point.choices == choices; });
  return found == points.end() ? nullptr : &*found;
}

RecomputePoint RecomputePlanner::cost_with_few(UnitChoices choices) const {
  if (const RecomputePoint* const point = find_point(points_with_few_, choices)) return *point;
  const Played played = play(choices, few_micro_batches_);
  const double share = added_share(choices, *played.training);
  return points_with_few_.emplace_back(RecomputePoint{std::move(choices), played.bytes, share});
}

RecomputePoint RecomputePlanner::cost_of(UnitChoices choices) const {
  const auto all = static_cast<int32_t>(config_.batch.accumulation);
  if (all == few_micro_batches_) return cost_with_few(std::move(choices));
  if (const RecomputePoint* const point = find_point(points_, choices)) return *point;
  RecomputePoint point = cost_with_few(std::move(choices));
  point.bytes = play(point.choices, all).bytes;
  return points_.emplace_back(std::move(point));
}

RecomputePoint RecomputePlanner::fixed(RecomputeKind kind, int64_t interval, OffloadChoice offloaded) const {
  RecomputePoint point = cost_of(choices_of(kind, interval, offloaded));
  // Varuna's is the only order of passes that depends on recomputation.
  if (config_.parallel.pipeline_schedule == PipelineOrder::varuna)
    point.bytes = play(point.choices, static_cast<int32_t>(config_.batch.accumulation), kind).bytes;
  return point;
}

std::optional<RecomputePoint> RecomputePlanner::selective_apart() const {
  if (keeps_parts() || config_.memory.activation_bits != 16 || config_.memory.saved_inputs != 16) return std::nullopt;
  const StepPlan few = plan_fixed(config_of(RecomputeKind::selective), target_, world_size_, rank_);
  double seconds = 0;
  for (const auto& [action, of_action] : nominal_pass_seconds(few, target_)) seconds += of_action;
  RunConfig config = config_;
  config.memory.recompute = RecomputeKind::selective;
  config.memory.offload = offload::none;
  const MemoryPlan memory = plan_fixed(config, target_, world_size_, rank_).memory().arenas;
  return RecomputePoint{{}, memory[MemoryClass::activations], seconds / work_seconds_ - 1};
}

UnitChoices RecomputePlanner::choices_of(RecomputeKind kind, int64_t interval, OffloadChoice offloaded) const {
  RunConfig config = config_;
  config.memory.recompute = kind;
  config.memory.offload = offloaded == offload::hidden ? OffloadChoice::of_blocks(hidden_count(kind)) : offloaded;
  config.memory.recompute_interval = interval;
  UnitChoices choices = fixed_units(config);
  const Stages& stages = whole_.options.stages;
  for (size_t unit = 0; unit < choices.size(); ++unit)
    if (!stages.runs(static_cast<int32_t>(unit))) choices[unit] = {};
  return choices;
}

// Returns one solver for all budgets up to a power of two. Its resolution falls with the chain's length, to bound the
// time.
ChainSolver& RecomputePlanner::solver(size_t chain, int64_t budget) const {
  const int64_t most = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(budget)));
  const auto found = solvers_.find({chain, most});
  if (found != solvers_.end()) return found->second;
  const auto units = static_cast<double>(chains_[chain].units.size());
  const double least = units > 1000 ? 32 : 128;
  const auto resolution = static_cast<int32_t>(std::clamp(2e8 / (units * units * units), least, 1000.0));
  return solvers_.emplace(std::pair(chain, most), ChainSolver(chains_[chain], most, resolution)).first->second;
}

// Lets the solver choose for each chain by itself: each chunk gets the budget as if it were the stage's only one.
std::optional<UnitChoices> RecomputePlanner::solve_chains(int64_t budget, std::optional<Copies> copies) const {
  UnitChoices choices(whole_.options.units.size());
  for (size_t chain = 0; chain < chains_.size(); ++chain) {
    const std::optional<double> price = copies ? std::optional(copies->price) : std::nullopt;
    const auto of_chain = solver(chain, budget).best(budget, price);
    if (!of_chain) return std::nullopt;
    for (size_t i = 0; i < of_chain->size(); ++i) {
      UnitChoice& choice = choices[static_cast<size_t>(first_units_[chain]) + i];
      choice = (*of_chain)[i];
      if (choice.again_from >= 0) choice.again_from += first_units_[chain];
    }
  }
  if (offloads_any(choices) && !copies->shortest) {
    const ProgramInput one = program_input(choices, 1);
    time_copies(choices, one.options, one.bytes, target_,
                [&](const Action& action) { return seconds_of(action, choices); });
  }
  return choices;
}

RecomputePoint RecomputePlanner::least_with(std::optional<Copies> copies) const {
  // Find the smallest budget for which the chains have a schedule, by bisection.
  int64_t enough = 1;
  for (const Chain& chain : chains_)
    for (const ChainUnit& unit : chain.units) enough = std::max(enough, unit.saved_bytes + unit.backward_bytes);
  while (!solve_chains(enough, copies)) enough *= 2;
  int64_t too_small = enough / 2;
  while (enough - too_small > 1 + enough / 512) {
    const int64_t between = too_small + (enough - too_small) / 2;
    (solve_chains(between, copies) ? enough : too_small) = between;
  }
  return cost_of(solve_chains(enough, copies).value());
}

const RecomputePoint& RecomputePlanner::least() const {
  if (least_) return *least_;
  least_ = least_with({});
  if (!may_offload_) return *least_;
  for (RecomputePoint other :
       {least_with(Copies{.price = 0, .shortest = true}), cost_of(choices_of(RecomputeKind::none, 0, offload::all)),
        cost_of(choices_of(RecomputeKind::block, 0, offload::all))}) {
    if (std::pair(other.bytes, other.again_share) < std::pair(least_->bytes, least_->again_share))
      least_ = std::move(other);
  }
  return *least_;
}

// Searches with few micro-batches, whose activations mostly take the bytes of all. If the choices exceed the budget
// with all micro-batches, lowers the budget by the excess and retries, up to four times. Returns false if it had to:
// other choices may then be better.
bool RecomputePlanner::search(int64_t budget_bytes, bool may_copy, std::optional<RecomputePoint>& best) const {
  constexpr int most_corrections = 4;
  int64_t budget = budget_bytes;
  for (int i = 0; i < most_corrections && budget > 0; ++i) {
    std::optional<RecomputePoint> found = best_with_few(budget, may_copy);
    if (!found) break;
    found = cost_of(std::move(found->choices));
    const int64_t over = found->bytes - budget_bytes;
    if (take_better(std::move(*found), budget_bytes, best)) break;
    budget -= over;
  }
  return budget == budget_bytes;
}

std::optional<RecomputePoint> RecomputePlanner::best(int64_t budget_bytes) const {
  std::optional<RecomputePoint> best;
  const bool is_complete = search(budget_bytes, may_offload_, best);
  const auto offer = [&](UnitChoices choices) {
    if (best && !offloads_any(choices) && again_share(choices) >= best->again_share) return;
    take_better(cost_of(std::move(choices)), budget_bytes, best);
  };
  if (!is_complete) {
    if (may_offload_) search(budget_bytes, false, best);
    for (UnitChoices& choices : usual_choices()) offer(std::move(choices));
    for (int64_t interval = config_.model.num_layers; interval >= 1; --interval)
      offer(choices_of(RecomputeKind::every_nth, interval));
  }
  if (best) return best;
  if (may_offload_) take_better(least_with({}), budget_bytes, best);
  take_better(least(), budget_bytes, best);
  return best;
}

// Returns the choices of the other values of memory.recompute and memory.offload_activations, without every_nth.
std::vector<UnitChoices> RecomputePlanner::usual_choices() const {
  std::vector<RecomputeKind> kinds = {RecomputeKind::none};
  if (keeps_parts()) kinds.push_back(RecomputeKind::selective);
  std::vector<UnitChoices> usual;
  for (const RecomputeKind kind : kinds) usual.push_back(choices_of(kind));
  if (!may_offload_) return usual;
  kinds.push_back(RecomputeKind::block);
  for (const RecomputeKind kind : kinds) {
    usual.push_back(choices_of(kind, 0, offload::all));
    usual.push_back(choices_of(kind, 0, offload::hidden));
  }
  return usual;
}

int64_t RecomputePlanner::hidden_count(RecomputeKind kind) const {
  const auto found = hidden_.find(kind);
  if (found != hidden_.end()) return found->second;
  RunConfig config = config_;
  config.memory.recompute = kind;
  return hidden_[kind] = hidden_blocks(config, target_, world_size_, whole_.options.stages.stage);
}

// The allocator takes other bytes for a schedule than the chain counts, so the chain's budget has to be searched for.
int64_t RecomputePlanner::search_chain_budget(int64_t budget_bytes, int64_t begin, int most_tries,
                                              std::optional<Copies> copies, std::optional<RecomputePoint>& best) const {
  int64_t fits = 0;
  int64_t too_large = 0;
  int64_t budget = begin;
  for (int i = 0; i < most_tries && budget > 0 && (too_large == 0 || too_large - fits > 1 + too_large / 512); ++i) {
    const std::optional<UnitChoices> choices = solve_chains(budget, copies);
    if (!choices || take_better(cost_with_few(*choices), budget_bytes, best)) {
      fits = budget;
    } else {
      too_large = budget;
    }
    budget = too_large == 0 ? budget + budget / 4 : fits + (too_large - fits) / 2;
  }
  return fits;
}

// Copies cost nothing while they are hidden by compute, and beyond that the time of the waits. Searches for the price
// of a copied byte that gives the shortest step. At price 1 the first of equal blocks are copied, as many as a forward
// pass has time for.
void RecomputePlanner::search_copies(int64_t budget_bytes, std::optional<RecomputePoint>& best) const {
  // The chain's budget changes little from one price to the next, so later searches begin with the last one.
  constexpr int first_tries = 9, more_tries = 7;
  int64_t chain_budget = 0;
  const auto share_at = [&](double price, bool shortest = false) {
    std::optional<RecomputePoint> found;
    chain_budget = chain_budget == 0 || price == 0
                       ? search_chain_budget(budget_bytes, budget_bytes, first_tries, Copies{price, shortest}, found)
                       : search_chain_budget(budget_bytes, chain_budget, more_tries, Copies{price, shortest}, found);
    if (!found) return std::numeric_limits<double>::infinity();
    const double share = found->again_share;
    take_better(std::move(*found), budget_bytes, best);
    return share;
  };
  double at = 1;
  double least = share_at(at);
  for (double factor = 4; factor > 1.4; factor = std::sqrt(factor)) {
    for (const double other : {at / factor, at * factor}) {
      const double share = share_at(other);
      if (share < least) std::tie(at, least) = std::pair(other, share);
    }
  }
  share_at(at, true);
  for (const bool shortest : {false, true}) share_at(0, shortest);
}

std::optional<RecomputePoint> RecomputePlanner::best_with_few(int64_t budget_bytes, bool may_copy) const {
  std::optional<RecomputePoint> best;
  if (take_better(cost_with_few(choices_of(RecomputeKind::none)), budget_bytes, best)) return best;
  constexpr int most_tries = 9;
  search_chain_budget(budget_bytes, budget_bytes, most_tries, {}, best);
  for (UnitChoices& choices : usual_choices()) take_better(cost_with_few(std::move(choices)), budget_bytes, best);
  for (int64_t interval = config_.model.num_layers; interval >= 1; --interval) {
    RecomputePoint every = cost_with_few(choices_of(RecomputeKind::every_nth, interval));
    if (best && every.again_share >= best->again_share) break;
    take_better(std::move(every), budget_bytes, best);
  }
  if (may_copy) search_copies(budget_bytes, best);
  return best;
}

std::vector<int64_t> curve_budgets(int64_t least, int64_t most, int64_t num_budgets) {
  std::vector<int64_t> budgets{least};
  const double factor = static_cast<double>(most) / static_cast<double>(least);
  for (int64_t i = 1; i < num_budgets; ++i) {
    const double share = std::pow(factor, static_cast<double>(i) / static_cast<double>(num_budgets - 1) - 1);
    budgets.push_back(i + 1 == num_budgets ? most : static_cast<int64_t>(share * static_cast<double>(most)));
  }
  return budgets;
}

int64_t activation_room(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage) {
  const Mesh mesh = make_mesh(config, world_size);
  const int64_t tensor = mesh.size(MeshAxis::tensor);
  int64_t others = 0;
  for (const RecomputeKind kind : {RecomputeKind::block, RecomputeKind::selective}) {
    if (kind == RecomputeKind::selective && !may_keep_parts(config, target)) continue;
    RunConfig fixed = with_enough_micro_batches(config);
    fixed.memory.recompute = kind;
    fixed.memory.offload = offload::none;
    // The first tensor rank has the biases and positions, the last the padding of the vocabulary.
    for (const int64_t tensor_rank : {int64_t{0}, tensor / 2, tensor - 1}) {
      if (tensor_rank > 0 && tensor == 1) continue;
      const int64_t rank = mesh.first_rank_of_stage(stage, tensor_rank);
      const MemoryPlan memory = plan_fixed(fixed, target, world_size, rank).memory().arenas;
      others = std::max(others, memory.total() - memory[MemoryClass::activations]);
    }
  }
  return target.bytes_of_rank() - others;
}

}  // namespace gptrain::fit
