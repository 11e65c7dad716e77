// memory.recompute = "optimal": chooses which activations the ranks of a stage keep and which they recompute, so that
// the step takes the least time within a budget of bytes. With offload "optimal" it also chooses which activations are
// copied to the host and back (like POFO: Beaumont, Eyraud-Dubois and Shilova, NeurIPS 2021).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "fit/recompute_costs.h"
#include "ops/target.h"
#include "schedule/recompute_chain.h"

namespace gptrain::inline fit {

// Searches the choices for a stage. Not thread-safe: const functions fill caches.
class RecomputePlanner {
 public:
  RecomputePlanner(const PlanCase& run, int32_t stage) : costs_(run, stage) {}
  RecomputePlanner(RecomputePlanner&&) = default;
  RecomputePlanner(const RecomputePlanner&) = delete;

  // Returns the costs that the search minimises, for choices of the caller's own.
  const RecomputeCosts& costs() const { return costs_; }
  // Returns the fastest choices found within `budget_bytes` of activations (RecomputePoint::bytes), none if nothing
  // fits.
  std::optional<RecomputePoint> best(int64_t budget_bytes) const;
  // Returns the choices with the fewest bytes found.
  const RecomputePoint& least() const;
  // Returns the choices of other values of recompute, recompute_interval and offload. REQUIRES: `offload` is not
  // "optimal", nor "hidden" with every_nth.
  RecomputePoint fixed(const MemoryConfig& memory) const;

 private:
  // How copies to the host are chosen.
  struct Copies {
    double price = 0;  // factor on the time that the link takes for each byte; 0: copies cost the solver nothing
    // True: each copy must end within one unit's pass; few bytes are then in flight, but the step may wait. False: each
    // copy is given as many passes as the link needs.
    bool shortest = false;
  };
  // Offers choices for a budget, and makes `best` the best of them.
  using Generator = void (RecomputePlanner::*)(int64_t budget_bytes, std::optional<RecomputePoint>& best) const;

  UnitChoices choices_of(const MemoryConfig& memory) const;
  std::vector<UnitChoices> usual_choices() const;
  // Returns the number of blocks that offload "hidden" takes with this recomputation.
  int64_t hidden_count(RecomputeKind kind) const;
  bool search(int64_t budget_bytes, bool may_copy, std::optional<RecomputePoint>& best) const;
  std::optional<RecomputePoint> best_with_few(int64_t budget_bytes, bool may_copy) const;
  // Generators: the chain solver's choices without copies; the other values of memory.recompute and
  // MemoryConfig::offload; every n-th block; the solver's choices with copies.
  void try_chains(int64_t budget_bytes, std::optional<RecomputePoint>& best) const;
  void try_usual(int64_t budget_bytes, std::optional<RecomputePoint>& best) const;
  void try_intervals(int64_t budget_bytes, std::optional<RecomputePoint>& best) const;
  void search_copies(int64_t budget_bytes, std::optional<RecomputePoint>& best) const;
  // Returns the largest chain budget tried, beginning with `begin`, whose choices fit into `budget_bytes`; 0 if none.
  int64_t search_chain_budget(int64_t budget_bytes, int64_t begin, int most_tries, std::optional<Copies> copies,
                              std::optional<RecomputePoint>& best) const;
  ChainSolver& solver(size_t chain, int64_t budget) const;
  std::optional<UnitChoices> solve_chains(int64_t budget, std::optional<Copies> copies) const;
  RecomputePoint least_with(std::optional<Copies> copies) const;

  RecomputeCosts costs_;
  mutable std::map<std::pair<size_t, int64_t>, ChainSolver> solvers_;  // by chain and largest budget
  mutable std::map<RecomputeKind, int64_t> hidden_;                    // results of hidden_count
  mutable std::optional<RecomputePoint> least_;
};

// Returns a geometric sequence of `num_budgets` numbers of bytes from `least` to `most`, rising; `least` alone for 1.
// REQUIRES: least > 0.
std::vector<int64_t> curve_budgets(int64_t least, int64_t most, int64_t num_budgets);

// Returns the bytes of a device that the other memory classes leave for activations, on the rank of the stage that has
// the fewest. Negative if the other classes alone do not fit.
int64_t activation_headroom(const PlanCase& run, int32_t stage);

}  // namespace gptrain::fit
