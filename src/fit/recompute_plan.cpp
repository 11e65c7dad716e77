#include "fit/recompute_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "fit/fitted_places.h"
#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"
#include "fit/offload_plan.h"

namespace gptrain::inline fit {
namespace {

// Makes `best` the candidate if that is better. Returns false if the candidate exceeds the budget.
bool take_better(RecomputePoint candidate, int64_t budget_bytes, std::optional<RecomputePoint>& best) {
  if (candidate.bytes > budget_bytes) return false;
  if (!best || std::pair(candidate.recompute_share, candidate.bytes) < std::pair(best->recompute_share, best->bytes))
    best = std::move(candidate);
  return true;
}

}  // namespace

RecomputePoint RecomputePlanner::fixed(const MemoryConfig& memory) const {
  RecomputePoint point = costs_.of(choices_of(memory));
  // Varuna's is the only order of passes that depends on recomputation.
  if (costs_.config().parallel.pipeline_schedule == PipelineOrder::varuna)
    point.bytes = costs_.bytes_in_order(point.choices, memory.recompute);
  return point;
}

UnitChoices RecomputePlanner::choices_of(const MemoryConfig& memory) const {
  RunConfig config = costs_.config();
  config.memory.recompute = memory.recompute;
  config.memory.recompute_interval = memory.recompute_interval;
  config.memory.offload = memory.offload;
  if (memory.offload == offload::hidden) config = with_offloaded_blocks(config, hidden_count(memory.recompute));
  UnitChoices choices = fixed_units(config);
  const Stages& stages = costs_.stages();
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
  const auto units = static_cast<double>(costs_.chains()[chain].units.size());
  const double least = units > 1000 ? 32 : 128;
  const auto resolution = static_cast<int32_t>(std::clamp(2e8 / (units * units * units), least, 1000.0));
  return solvers_.emplace(std::pair(chain, most), ChainSolver(costs_.chains()[chain], most, resolution)).first->second;
}

// Lets the solver choose for each chain by itself: each chunk gets the budget as if it were the stage's only one.
std::optional<UnitChoices> RecomputePlanner::solve_chains(int64_t budget, std::optional<Copies> copies) const {
  UnitChoices choices(costs_.num_units());
  const std::optional<double> price = copies ? std::optional(copies->price) : std::nullopt;
  std::optional<UnitChoices> of_chain;
  for (size_t chain = 0; chain < costs_.chains().size(); ++chain) {
    // Most chunks of a stage equal the one before.
    if (chain == 0 || costs_.chains()[chain] != costs_.chains()[chain - 1])
      of_chain = solver(chain, budget).best(budget, price);
    if (!of_chain) return std::nullopt;
    for (size_t i = 0; i < of_chain->size(); ++i) {
      UnitChoice& choice = choices[static_cast<size_t>(costs_.first_units()[chain]) + i];
      choice = (*of_chain)[i];
      if (choice.recompute_from >= 0) choice.recompute_from += costs_.first_units()[chain];
    }
  }
  if (offloads_any(choices) && !copies->shortest) costs_.set_copy_times(choices);
  return choices;
}

RecomputePoint RecomputePlanner::least_with(std::optional<Copies> copies) const {
  // Find the smallest budget for which the chains have a schedule, by bisection.
  int64_t enough = 1;
  for (const Chain& chain : costs_.chains())
    for (const ChainUnit& unit : chain.units) enough = std::max(enough, unit.saved_bytes + unit.backward_bytes);
  while (!solve_chains(enough, copies)) enough *= 2;
  int64_t too_small = enough / 2;
  while (enough - too_small > 1 + enough / 512) {
    const int64_t between = too_small + (enough - too_small) / 2;
    (solve_chains(between, copies) ? enough : too_small) = between;
  }
  return costs_.of(solve_chains(enough, copies).value());
}

const RecomputePoint& RecomputePlanner::least() const {
  if (least_) return *least_;
  least_ = least_with({});
  if (!costs_.may_offload()) return *least_;
  for (RecomputePoint other : {least_with(Copies{.price = 0, .shortest = true}),
                               costs_.of(choices_of({.recompute = RecomputeKind::none, .offload = offload::all})),
                               costs_.of(choices_of({.recompute = RecomputeKind::block, .offload = offload::all}))}) {
    if (std::pair(other.bytes, other.recompute_share) < std::pair(least_->bytes, least_->recompute_share))
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
    found = costs_.of(std::move(found->choices));
    const int64_t over = found->bytes - budget_bytes;
    if (take_better(std::move(*found), budget_bytes, best)) break;
    budget -= over;
  }
  return budget == budget_bytes;
}

std::optional<RecomputePoint> RecomputePlanner::best(int64_t budget_bytes) const {
  std::optional<RecomputePoint> best;
  const bool is_complete = search(budget_bytes, costs_.may_offload(), best);
  const auto offer = [&](UnitChoices choices) {
    if (best && !offloads_any(choices) && costs_.recompute_share(choices) >= best->recompute_share) return;
    take_better(costs_.of(std::move(choices)), budget_bytes, best);
  };
  if (!is_complete) {
    if (costs_.may_offload()) search(budget_bytes, false, best);
    for (UnitChoices& choices : usual_choices()) offer(std::move(choices));
    for (int64_t interval = costs_.config().model.num_layers; interval >= 1; --interval)
      offer(choices_of({.recompute = RecomputeKind::every_nth, .recompute_interval = interval}));
  }
  if (best) return best;
  if (costs_.may_offload()) take_better(least_with({}), budget_bytes, best);
  take_better(least(), budget_bytes, best);
  return best;
}

// Returns the choices of the other values of memory.recompute and memory.offload, without every_nth.
std::vector<UnitChoices> RecomputePlanner::usual_choices() const {
  std::vector<RecomputeKind> kinds = {RecomputeKind::none};
  if (costs_.saves_parts()) kinds.push_back(RecomputeKind::selective);
  std::vector<UnitChoices> usual;
  for (const RecomputeKind kind : kinds) usual.push_back(choices_of({.recompute = kind}));
  if (!costs_.may_offload()) return usual;
  kinds.push_back(RecomputeKind::block);
  for (const RecomputeKind kind : kinds) {
    usual.push_back(choices_of({.recompute = kind, .offload = offload::all}));
    usual.push_back(choices_of({.recompute = kind, .offload = offload::hidden}));
  }
  return usual;
}

int64_t RecomputePlanner::hidden_count(RecomputeKind kind) const {
  const auto found = hidden_.find(kind);
  if (found != hidden_.end()) return found->second;
  RunConfig config = costs_.config();
  config.memory.recompute = kind;
  return hidden_[kind] = hidden_blocks({config, costs_.target(), costs_.world_size()}, costs_.stages().stage);
}

// The allocator takes other bytes for a schedule than the chain counts, so the chain's budget has to be searched for.
int64_t RecomputePlanner::search_chain_budget(int64_t budget_bytes, int64_t begin, int most_tries,
                                              std::optional<Copies> copies, std::optional<RecomputePoint>& best) const {
  int64_t fits = 0;
  int64_t too_large = 0;
  int64_t budget = begin;
  for (int i = 0; i < most_tries && budget > 0 && (too_large == 0 || too_large - fits > 1 + too_large / 512); ++i) {
    const std::optional<UnitChoices> choices = solve_chains(budget, copies);
    if (!choices || take_better(costs_.cost_in_short_step(*choices), budget_bytes, best)) {
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
    const double share = found->recompute_share;
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

void RecomputePlanner::try_chains(int64_t budget_bytes, std::optional<RecomputePoint>& best) const {
  constexpr int most_tries = 9;
  search_chain_budget(budget_bytes, budget_bytes, most_tries, {}, best);
}

void RecomputePlanner::try_usual(int64_t budget_bytes, std::optional<RecomputePoint>& best) const {
  for (UnitChoices& choices : usual_choices())
    take_better(costs_.cost_in_short_step(std::move(choices)), budget_bytes, best);
}

void RecomputePlanner::try_intervals(int64_t budget_bytes, std::optional<RecomputePoint>& best) const {
  for (int64_t interval = costs_.config().model.num_layers; interval >= 1; --interval) {
    RecomputePoint every =
        costs_.cost_in_short_step(choices_of({.recompute = RecomputeKind::every_nth, .recompute_interval = interval}));
    if (best && every.recompute_share >= best->recompute_share) return;
    take_better(std::move(every), budget_bytes, best);
  }
}

std::optional<RecomputePoint> RecomputePlanner::best_with_few(int64_t budget_bytes, bool may_copy) const {
  std::optional<RecomputePoint> best;
  if (take_better(costs_.cost_in_short_step(choices_of({.recompute = RecomputeKind::none})), budget_bytes, best))
    return best;
  std::vector<Generator> generators = {&RecomputePlanner::try_chains, &RecomputePlanner::try_usual,
                                       &RecomputePlanner::try_intervals};
  if (may_copy) generators.push_back(&RecomputePlanner::search_copies);
  for (const Generator generate : generators) (this->*generate)(budget_bytes, best);
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

int64_t activation_headroom(const PlanCase& run, int32_t stage) {
  const auto& [config, target, world_size] = run;
  const Mesh mesh = make_mesh(config, world_size);
  const int64_t tensor = mesh.size(MeshAxis::tensor);
  MemoryConfig placed = config.memory;
  if (placed.fits_places()) placed = fitted_places(run, stage, RecomputePlanner(run, stage).least().choices);
  int64_t others = 0;
  for (const RecomputeKind kind : {RecomputeKind::block, RecomputeKind::selective}) {
    if (kind == RecomputeKind::selective && !may_keep_parts(config, config.memory, target)) continue;
    RunConfig fixed = with_enough_micro_batches(config);
    fixed.memory = placed;
    fixed.memory.recompute = kind;
    fixed.memory.offload = offload::none;
    // The first tensor rank has the biases and positions, the last the padding of the vocabulary.
    for (const int64_t tensor_rank : std::set<int64_t>{0, tensor / 2, tensor - 1}) {
      const int64_t rank = mesh.first_rank_of_stage(stage, tensor_rank);
      const MemoryPlan memory = plan_fixed({fixed, target, world_size}, rank).memory().arenas;
      others = std::max(others, memory.total() - memory[MemoryClass::activations]);
    }
  }
  return target.bytes_of_rank() - others;
}

}  // namespace gptrain::fit
