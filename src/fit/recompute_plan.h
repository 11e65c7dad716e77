// memory.recompute = "optimal": what the ranks of a stage keep of a forward pass and what they run again, in the least
// time within the bytes that activations may take. With offload "optimal" also what lies on the host
// until it is needed (as POFO does: Beaumont, Eyraud-Dubois and Shilova, NeurIPS 2021).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "ops/target.h"
#include "schedule/recompute_chain.h"
#include "fit/nominal_times.h"

namespace gptrain {

// A way to recompute, of a stage.
struct RecomputePoint {
  UnitChoices choices;     // of all units of the model; of other stages' units nothing
  int64_t bytes = 0;       // that the arena of activations then takes
  double again_share = 0;  // time of what is run again, and of waits for copies, as a share of that of everything else
};

// What is made of a stage's blocks.
struct RecomputeCounts {
  int64_t kept = 0;
  int64_t in_part = 0;      // what linears gave is kept
  int64_t alone = 0;        // run again from their own input
  int64_t from_before = 0;  // run again with blocks before them, whose outputs are not kept
  int64_t offloaded = 0;    // of all these: on the host until their backward pass, as far as they are kept
};

// The bytes of each unit are those of planned steps, its times those of their ops and copies on a usual device of the
// target's kind (fit/nominal_times.h). Ranks of a stage come to the same choices: they are made for its first rank.
// Nothing is offloaded on the CPU, whose copies are made among the ops.
class RecomputePlanner {
 public:
  RecomputePlanner(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage);
  RecomputePlanner(RecomputePlanner&&) = default;
  RecomputePlanner(const RecomputePlanner&) = delete;

  // The least time within so many bytes; none where nothing fits.
  std::optional<RecomputePoint> best(int64_t budget_bytes) const;
  // The fewest bytes that can be found.
  const RecomputePoint& least() const;
  // As another value of memory.recompute has it. `interval`: of every_nth; `offloaded`: blocks, spread evenly, or
  // offload::hidden (not with every_nth).
  RecomputePoint fixed(RecomputeKind kind, int64_t interval = 0, OffloadChoice offloaded = {}) const;
  // memory.recompute "selective" as a run has it, where its bits differ, so that it is none of the choices; it has none
  // here. None: keeps_parts, or a rule of the config forbids it.
  std::optional<RecomputePoint> selective_apart() const;
  // What any choices take.
  RecomputePoint weighed(UnitChoices choices) const;
  RecomputeCounts counts(const UnitChoices& choices) const;
  // Whether blocks can keep what their linears gave, with the same bits.
  bool keeps_parts() const { return in_parts_.has_value(); }

 private:
  // How copies are chosen.
  struct Copies {
    double price = 0;         // of a byte, beside what the link takes for it
    bool takes_least = false;  // each has one pass of a unit, so that little is on its way; else as long as the link needs
  };
  // Bytes and traits of a stage's units, where no block keeps a part and where all do.
  struct Planned {
    ScheduleOptions options;
    BufferBytes bytes;
  };

  // Options and bytes of a schedule with such choices.
  Planned planned(const UnitChoices& choices, int32_t micro_batches) const;
  double seconds_of(const Action& action, const UnitChoices& choices) const;
  RunConfig config_of(RecomputeKind kind) const;
  void make_chains(const StepPlan& whole, const PassSeconds* in_parts);
  ChainUnit chain_unit(int32_t unit, const StepPlan& whole, const PassSeconds* in_parts) const;
  struct Played {
    std::shared_ptr<const Program> training;
    int64_t bytes;  // of the arena of activations
  };
  // In the order of passes of memory.recompute's value.
  Played play(const UnitChoices& choices, int32_t micro_batches, RecomputeKind kind = RecomputeKind::optimal) const;
  // Null: such choices have not been weighed yet.
  static const RecomputePoint* known(const std::vector<RecomputePoint>& points, const UnitChoices& choices);
  RecomputePoint of_few(UnitChoices choices) const;  // micro-batches
  UnitChoices choices_of(RecomputeKind kind, int64_t interval = 0, OffloadChoice offloaded = {}) const;
  std::vector<UnitChoices> usual_choices() const;
  // Blocks that offload "hidden" takes with this recomputation.
  int64_t hidden_count(RecomputeKind kind) const;
  bool correct(int64_t budget_bytes, bool may_copy, std::optional<RecomputePoint>& best) const;
  std::optional<RecomputePoint> best_of_few(int64_t budget_bytes, bool may_copy) const;
  // What the chain may take that fits; from `begin` on.
  int64_t seek(int64_t budget_bytes, int64_t begin, int most_tries, std::optional<Copies> copies,
               std::optional<RecomputePoint>& best) const;
  void seek_copies(int64_t budget_bytes, std::optional<RecomputePoint>& best) const;
  double added_share(const UnitChoices& choices, const Program& training) const;
  double again_share(const UnitChoices& choices) const;
  ChainSolver& solver(size_t chain, int64_t budget) const;
  std::optional<UnitChoices> chosen(int64_t budget, std::optional<Copies> copies) const;
  RecomputePoint least_with(std::optional<Copies> copies) const;

  RunConfig config_;
  Target target_;
  int64_t world_size_;
  int64_t rank_ = 0;
  Planned whole_;
  std::optional<Planned> in_parts_;
  std::vector<int32_t> first_units_;  // by chain
  std::vector<Chain> chains_;         // of the stage's chunks
  int32_t few_micro_batches_ = 0;     // that show what a stage has in flight
  double work_seconds_ = 0;           // of a micro-batch, without what is run again
  PassSeconds seconds_;
  bool may_offload_ = false;
  mutable std::map<std::pair<size_t, int64_t>, ChainSolver> solvers_;  // by chain and the most bytes
  mutable std::map<RecomputeKind, int64_t> hidden_;  // of hidden_count: each takes a plan
  mutable std::optional<RecomputePoint> least_;
  mutable std::vector<RecomputePoint> of_few_, of_all_;  // what has been weighed: different budgets come to the same choices
};

// So many, each larger than the one before by one factor.
std::vector<int64_t> curve_budgets(int64_t least, int64_t most, int64_t num_budgets);

// The bytes that a device leaves for the activations of a rank of the stage, beside everything else that such a rank
// takes.
int64_t activation_room(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage);

}  // namespace gptrain
