// The dry run of a training step: the step itself, on the `plan` backend.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "parallel/groups.h"
#include "step/step_log.h"
#include "step/training_step.h"

namespace gptrain {

// What one rank's step does and takes.
struct StepPlan {
  std::shared_ptr<const StepDesign> design;
  StepLog log;
  OpTable ops{};          // of the log
  LaneTraffic traffic{};  // of the log: what the rank sends
  std::string warnings;   // lines, as of Backend::take_warnings
  int64_t written_bytes = 0;  // of a checkpoint's tensors, by this rank

  const StepMemory& memory() const { return design->memory; }
  OpTotals total() const;
};

// What the ranks of one pipeline stage take.
struct StagePlan {
  int64_t rank = 0;  // that takes the most memory
  StepMemory memory;
  int64_t num_layers = 0;   // of all its chunks
  int64_t num_offloaded = 0;  // blocks
  int64_t in_flight = 0;    // chunks of micro-batches between their forward and their last backward pass, at most
};

// What all ranks of a world take: ranks of one kind are planned once.
struct WorldPlan {
  ModelSpec spec;
  LaneTraffic traffic{};     // that rank 0 sends
  std::string warnings;      // of rank 0
  int64_t largest_rank = 0;  // the first rank of those that take the most memory, and its plan
  StepMemory largest;
  std::vector<StagePlan> stages;
  std::vector<UnitChoices> choices;  // by stage: what is run again
  OpTable ops{};  // of all ranks
  // Of a checkpoint's tensors, by a rank: of stage s and tensor rank t, of T, number s T + t. That of the first data
  // rank: the others' shares differ by the padding between tensors.
  std::vector<int64_t> written_bytes;
  // On the host, by a rank of that number.
  std::vector<MemoryPlan::ByClass> on_host;
};
// `of_rank(rank, plan)`, if given, gets each plan that was made.
WorldPlan plan_world(const RunConfig& config, const Target& target, int64_t world_size,
                     const std::function<void(int64_t, StepPlan)>& of_rank = {});

// By rank the number of its node. `ranks_per_node`: 0 for all.
std::vector<int64_t> nodes_of_ranks(int64_t world_size, int64_t ranks_per_node);

// Of the node whose ranks take the most of its host's memory. `on_host`: as WorldPlan has it.
HostMemoryUse fullest_host(const std::vector<MemoryPlan::ByClass>& on_host, const Mesh& mesh,
                           const std::vector<int64_t>& node_of_rank);

// What the ranks of the world take: the most that one takes of its device (WorldPlan::largest), and WorldPlan::on_host.
struct RankBytes {
  int64_t on_device = 0;
  std::vector<MemoryPlan::ByClass> on_host;
};
// The ranks of `first_stage` are planned first. Once a rank takes more than `enough` of its device that is the answer.
RankBytes largest_rank_bytes(const RunConfig& config, const Target& target, int64_t world_size, int64_t first_stage,
                             int64_t enough = std::numeric_limits<int64_t>::max());

// The step of a config with so many micro-batches.
RunConfig with_micro_batches(RunConfig config, int64_t micro_batches);
// With two, of which the second shows what passes take: copies of weights are made in the first.
RunConfig with_few_micro_batches(RunConfig config);
// With no more than it takes for ranks to need the same memory and to choose the same (fit/recompute_plan.h): where
// nothing of a micro-batch outlives it, all have the same places (schedule/allocator.h).
RunConfig with_enough_micro_batches(RunConfig config);

// Runs one step of `config` for `rank` of `world_size` ranks on the `plan` backend of `target`.
// `like` and `choices`: as of design_step, but that where there are no choices they are made (fit/recompute_plan.h).
StepPlan plan_step(const RunConfig& config, const Target& target, int64_t world_size = 1, int64_t rank = 0,
                   const std::shared_ptr<const Program>& like = nullptr, const UnitChoices* choices = nullptr);

}  // namespace gptrain
