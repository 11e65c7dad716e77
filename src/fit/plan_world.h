// The plans of all ranks of a run: ranks of one kind are planned once.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "mesh/mesh.h"
#include "ops/target.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain {

// The memory of the ranks of one pipeline stage.
struct StagePlan {
  int64_t rank = 0;           // the first of the stage's ranks that take the most device memory
  StepMemory memory;          // of that rank
  int64_t num_layers = 0;     // of all chunks of the stage
  int64_t num_offloaded = 0;  // blocks with activations on the host
  int64_t in_flight = 0;      // most chunks of micro-batches between their forward and their last backward pass
};

// Vectors by kind of rank have one element for each stage s and tensor rank t of T, at position s T + t: that of the first
// data rank.
struct WorldPlan {
  ModelSpec spec;
  LaneTraffic traffic{};             // sent by rank 0
  std::string warnings;              // of rank 0
  int64_t largest_rank = 0;          // the first of the ranks that take the most device memory
  StepMemory largest;                // of that rank
  std::vector<StagePlan> stages;
  std::vector<StepChoices> choices;  // by stage
  OpTable ops{};                     // of all ranks
  // Bytes of a checkpoint's tensors that a rank writes, by kind. Other data ranks differ by the padding between tensors.
  std::vector<int64_t> written_bytes;
  std::vector<MemoryPlan::ByClass> on_host;  // by kind
};
// Plans the run. Calls `of_rank(rank, plan)`, where given, with each plan that was made, in order of stages.
WorldPlan plan_world(const RunConfig& config, const Target& target, int64_t world_size,
                     const std::function<void(int64_t, StepPlan)>& of_rank = {});

// Returns the number of each rank's node. `ranks_per_node`: 0 if all ranks are on one node.
std::vector<int64_t> nodes_of_ranks(int64_t world_size, int64_t ranks_per_node);

// Returns the use of the node whose ranks take the most of its host's memory. `on_host`: by kind, as WorldPlan has it.
HostMemoryUse fullest_host(const std::vector<MemoryPlan::ByClass>& on_host, const Mesh& mesh,
                           const std::vector<int64_t>& node_of_rank);

struct RankBytes {
  int64_t on_device = 0;                     // the most that a rank takes
  std::vector<MemoryPlan::ByClass> on_host;  // by kind, as WorldPlan has it
};
// Plans the memory of all kinds of ranks, those of `first_stage` first, and stops once a rank takes more than `enough`
// bytes of its device: on_device then is that rank's, and on_host incomplete.
RankBytes largest_rank_bytes(const RunConfig& config, const Target& target, int64_t world_size, int64_t first_stage,
                             int64_t enough = std::numeric_limits<int64_t>::max());

}  // namespace gptrain
