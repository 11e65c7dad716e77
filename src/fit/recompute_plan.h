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
#include "fit/nominal_times.h"
#include "ops/target.h"
#include "schedule/recompute_chain.h"

namespace gptrain::inline fit {

// Choices for a stage, with their cost.
struct RecomputePoint {
  UnitChoices choices;     // by unit of the model; units of other stages have the default
  int64_t bytes = 0;       // size of the arena of activations
  double again_share = 0;  // time of recomputation and of waits for copies, divided by the time of all other work
};

// Number of a stage's blocks by how they are treated. The first four add up to all blocks.
struct RecomputeCounts {
  int64_t kept = 0;
  int64_t in_part = 0;      // the outputs of the linears are kept, the rest is recomputed
  int64_t alone = 0;        // recomputed from their own input
  int64_t from_before = 0;  // recomputed together with preceding blocks, whose outputs are not kept
  int64_t offloaded = 0;    // blocks of any of these kinds whose kept activations are on the host until backward
};

// Plans the stage's first rank, so that all ranks of a stage make the same choices. Sizes come from planned steps,
// times from their ops and copies at the nominal rates of the target's kind of device (fit/nominal_times.h). Offloads
// nothing on the CPU, where copies run among the ops. Not thread-safe: const functions fill caches.
class RecomputePlanner {
 public:
  RecomputePlanner(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage);
  RecomputePlanner(RecomputePlanner&&) = default;
  RecomputePlanner(const RecomputePlanner&) = delete;

  // Returns the fastest choices found within `budget_bytes`, none if nothing fits.
  std::optional<RecomputePoint> best(int64_t budget_bytes) const;
  // Returns the choices with the fewest bytes found.
  const RecomputePoint& least() const;
  // Returns the choices of another value of memory.recompute. `interval`: memory.recompute_interval, for every_nth.
  // `offloaded`: number of blocks, spread evenly, or a word. REQUIRES: `offloaded` is not "optimal", nor "hidden" with
  // every_nth.
  RecomputePoint fixed(RecomputeKind kind, int64_t interval = 0, OffloadChoice offloaded = {}) const;
  // Returns the cost of memory.recompute = "selective" if its results differ in bits from those of the other values, so
  // that "optimal" cannot use it; `choices` is empty. None if keeps_parts() or if a rule of the config forbids it.
  std::optional<RecomputePoint> selective_apart() const;
  // Returns the cost of given choices.
  RecomputePoint cost_of(UnitChoices choices) const;
  RecomputeCounts counts(const UnitChoices& choices) const;
  // Returns true if blocks can keep only the outputs of their linears, with results equal to the bit.
  bool keeps_parts() const { return in_parts_.has_value(); }

 private:
  // How copies to the host are chosen.
  struct Copies {
    double price = 0;  // factor on the time that the link takes for each byte; 0: copies cost the solver nothing
    // True: each copy gets the time of one unit's pass, so that few bytes are in flight, but the step may wait. False:
    // each gets as many passes as the link needs.
    bool shortest = false;
  };
  // The input of make_program.
  struct ProgramInput {
    ScheduleOptions options;
    BufferBytes bytes;
  };

  ProgramInput program_input(const UnitChoices& choices, int32_t micro_batches) const;
  double seconds_of(const Action& action, const UnitChoices& choices) const;
  RunConfig config_of(RecomputeKind kind) const;
  void make_chains(const StepPlan& whole, const PassSeconds* in_parts);
  ChainUnit chain_unit(int32_t unit, const StepPlan& whole, const PassSeconds* in_parts) const;
  struct Played {
    std::shared_ptr<const Program> training;
    int64_t bytes;  // size of the arena of activations
  };
  // Orders the passes as with memory.recompute = `kind`.
  Played play(const UnitChoices& choices, int32_t micro_batches, RecomputeKind kind = RecomputeKind::optimal) const;
  // Returns the point with these choices, or null.
  static const RecomputePoint* find_point(const std::vector<RecomputePoint>& points, const UnitChoices& choices);
  // Returns the cost of a step with few_micro_batches_. It is quick, and its bytes are mostly those of the whole step.
  RecomputePoint cost_with_few(UnitChoices choices) const;
  UnitChoices choices_of(RecomputeKind kind, int64_t interval = 0, OffloadChoice offloaded = {}) const;
  std::vector<UnitChoices> usual_choices() const;
  // Returns the number of blocks that offload "hidden" takes with this recomputation.
  int64_t hidden_count(RecomputeKind kind) const;
  bool search(int64_t budget_bytes, bool may_copy, std::optional<RecomputePoint>& best) const;
  std::optional<RecomputePoint> best_with_few(int64_t budget_bytes, bool may_copy) const;
  // Returns the largest chain budget tried, beginning with `begin`, whose choices fit into `budget_bytes`; 0 if none.
  int64_t search_chain_budget(int64_t budget_bytes, int64_t begin, int most_tries, std::optional<Copies> copies,
                              std::optional<RecomputePoint>& best) const;
  void search_copies(int64_t budget_bytes, std::optional<RecomputePoint>& best) const;
  double added_share(const UnitChoices& choices, const Program& training) const;
  double again_share(const UnitChoices& choices) const;
  ChainSolver& solver(size_t chain, int64_t budget) const;
  std::optional<UnitChoices> solve_chains(int64_t budget, std::optional<Copies> copies) const;
  RecomputePoint least_with(std::optional<Copies> copies) const;

  RunConfig config_;
  Target target_;
  int64_t world_size_;
  int64_t rank_ = 0;
  ProgramInput whole_;                    // no block keeps a part
  std::optional<ProgramInput> in_parts_;  // all blocks keep a part; none if they cannot
  std::vector<int32_t> first_units_;      // by chain
  std::vector<Chain> chains_;             // one for each chunk of the stage
  int32_t few_micro_batches_ = 0;         // enough for the stage to have as many in flight as it ever has
  double work_seconds_ = 0;               // time of one micro-batch without recomputation
  PassSeconds seconds_;
  bool may_offload_ = false;
  mutable std::map<std::pair<size_t, int64_t>, ChainSolver> solvers_;  // by chain and largest budget
  mutable std::map<RecomputeKind, int64_t> hidden_;                    // results of hidden_count
  mutable std::optional<RecomputePoint> least_;
  mutable std::vector<RecomputePoint> points_with_few_, points_;  // results of cost_with_few and cost_of
};

// Returns a geometric sequence of `num_budgets` numbers of bytes from `least` to `most`.
std::vector<int64_t> curve_budgets(int64_t least, int64_t most, int64_t num_budgets);

// Returns the bytes of a device that the other memory classes leave for activations, on the rank of the stage that has
// the fewest.
int64_t activation_room(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage);

}  // namespace gptrain::fit
