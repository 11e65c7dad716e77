// Costs of the choices for a pipeline stage: which activations are kept, recomputed or copied to the host and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "config/run_config.h"
#include "fit/nominal_times.h"
#include "ops/target.h"
#include "schedule/recompute_chain.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// Choices for a stage, with their cost.
struct RecomputePoint {
  UnitChoices choices;         // by unit of the model; units of other stages have the default
  int64_t bytes = 0;           // size of the arena of activations
  double recompute_share = 0;  // time of recomputation and of waits for copies, divided by the time of all other work
};

// Number of a stage's blocks by how they are treated. The first four add up to all blocks.
struct RecomputeCounts {
  int64_t saving_all = 0;
  int64_t in_part = 0;      // the outputs of the linears are kept, the rest is recomputed
  int64_t alone = 0;        // recomputed from their own input
  int64_t from_before = 0;  // recomputed together with preceding blocks, whose outputs are not kept
  int64_t offloaded = 0;    // blocks of any of these kinds whose kept activations are on the host until backward
};

struct HashOfChoices {
  size_t operator()(const UnitChoices& choices) const;
};

bool offloads_any(const UnitChoices& choices);
// Returns true if the products of some layer compute its activation.
bool fuses_activations(const StepConfig& config, const Target& target);
// Returns true if blocks can keep only the outputs of their linears, with results equal to the bit.
bool may_keep_parts(const StepConfig& config, const MemoryConfig& memory, const Target& target);

// Plans the stage's first rank, so that all ranks of a stage make the same choices. Sizes come from planned steps,
// times from their ops and copies at the nominal rates of the target's kind of device (fit/nominal_times.h). Offloads
// nothing on the CPU, where copies run among the ops. Not thread-safe: const functions remember costs.
class RecomputeCosts {
 public:
  RecomputeCosts(const PlanCase& run, int32_t stage);

  const RunConfig& config() const { return config_; }
  const Target& target() const { return target_; }
  int64_t world_size() const { return world_size_; }
  const Stages& stages() const { return whole_.options.stages; }
  size_t num_units() const { return whole_.options.units.size(); }
  // Returns true if blocks may keep only the outputs of their linears.
  bool saves_parts() const { return in_parts_.has_value(); }
  bool may_offload() const { return may_offload_; }
  // Return one chain for each chunk of the stage, and each chunk's first unit.
  const std::vector<Chain>& chains() const { return chains_; }
  const std::vector<int32_t>& first_units() const { return first_units_; }

  // Returns the cost of choices in a step.
  RecomputePoint of(UnitChoices choices) const;
  // Returns the cost in a step of few micro-batches. It is quick, and its bytes are mostly those of the whole step.
  RecomputePoint cost_in_short_step(UnitChoices choices) const;
  // Returns the bytes if passes are ordered as with memory.recompute = `kind`.
  int64_t bytes_in_order(const UnitChoices& choices, RecomputeKind kind) const;
  // Returns the time of recomputation over the time of all other work.
  double recompute_share(const UnitChoices& choices) const;
  // Returns the cost of memory.recompute = "selective" if its results differ in bits from those of the other values, so
  // that "optimal" cannot use it; `choices` is empty. None if saves_parts() or if a rule of the config forbids it.
  std::optional<RecomputePoint> selective_point() const;
  RecomputeCounts counts(const UnitChoices& choices) const;
  // Gives each copy as many passes as the link needs.
  void set_copy_times(UnitChoices& choices) const;

 private:
  // The input of make_program.
  struct ProgramInput {
    ScheduleOptions options;
    BufferBytes bytes;
  };
  struct Played {
    std::shared_ptr<const Program> training;
    int64_t bytes;  // size of the arena of activations
  };
  // Costs that are known; negative bytes: not yet.
  struct Cost {
    int64_t bytes = -1, few_bytes = -1;
    double recompute_share = 0;
  };

  ProgramInput program_input(const UnitChoices& choices, int32_t micro_batches) const;
  double seconds_of(const Action& action, const UnitChoices& choices) const;
  RunConfig config_of(RecomputeKind kind) const;
  void make_chains(const StepPlan& whole, const PassSeconds* in_parts);
  ChainUnit chain_unit(int32_t unit, const StepPlan& whole, const PassSeconds* in_parts) const;
  // Orders the passes as with memory.recompute = `kind`.
  Played play(const UnitChoices& choices, int32_t micro_batches, RecomputeKind kind = RecomputeKind::optimal) const;
  double added_share(const UnitChoices& choices, const Program& training) const;

  RunConfig config_;
  Target target_;
  int64_t world_size_;
  int64_t rank_ = 0;
  ProgramInput whole_;                    // no block keeps a part
  std::optional<ProgramInput> in_parts_;  // all blocks keep a part; none if they cannot
  std::vector<int32_t> first_units_;      // by chain
  std::vector<Chain> chains_;
  int32_t few_micro_batches_ = 0;  // enough for the stage to have as many in flight as it ever has
  double work_seconds_ = 0;        // time of one micro-batch without recomputation
  PassSeconds seconds_;
  bool may_offload_ = false;
  mutable std::unordered_map<UnitChoices, Cost, HashOfChoices> known_;
};

}  // namespace gptrain::fit
