// Plans all ranks of a run. Ranks of the same stage and kind have equal plans and are planned once.
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

namespace gptrain::inline fit {

// The plan of one pipeline stage.
struct StagePlan {
  int64_t rank = 0;           // the first of the stage's ranks that take the most device memory
  StepMemory memory;          // memory of that rank
  int64_t num_layers = 0;     // blocks in all chunks of the stage
  int64_t num_offloaded = 0;  // blocks with activations on the host
  int64_t in_flight = 0;      // most chunks of micro-batches between their forward and their last backward pass
};

// Vectors "by kind" have one element for each stage s and tensor rank t of T, at position s T + t. Each
// element is the value of the first of the ranks there; the others differ by the padding between tensors.
struct WorldPlan {
  ModelSpec spec;
  LaneTraffic traffic{};                      // sent by rank 0
  std::vector<ProgramTraffic> other_traffic;  // sent by rank 0 in steps of other programs
  std::string warnings;                       // rank 0's, one per line; empty if none
  int64_t largest_rank = 0;                   // the first of the ranks that take the most device memory
  StepMemory largest;                         // memory of that rank
  std::vector<StagePlan> stages;
  std::vector<StepChoices> choices;          // by stage
  OpTable ops{};                             // sums over all ranks
  std::vector<int64_t> written_bytes;        // by kind: bytes of a checkpoint's tensors that the rank writes
  std::vector<MemoryPlan::ByClass> on_host;  // by kind: bytes of host memory
};
// Plans the run. Calls `of_rank(rank, plan)`, if given, with each plan made, in order of stages.
WorldPlan plan_world(const PlanCase& run, const std::function<void(int64_t, StepPlan)>& of_rank = {});

// Returns the number of each rank's node. `ranks_per_node`: 0 means that all ranks are on one node.
std::vector<int64_t> nodes_of_ranks(int64_t world_size, int64_t ranks_per_node);

// Returns the host memory used on the node whose ranks take the most. `on_host`: WorldPlan::on_host.
HostMemoryUse fullest_host(const std::vector<MemoryPlan::ByClass>& on_host, const Mesh& mesh,
                           const std::vector<int64_t>& node_of_rank);

struct RankBytes {
  int64_t on_device = 0;                     // most device memory of a rank
  std::vector<MemoryPlan::ByClass> on_host;  // by kind, like WorldPlan::on_host
};
// Plans the memory of all kinds of ranks, beginning with `first_stage`. Stops at the first rank that takes more than
// `enough` bytes of its device: on_device is then that rank's, and on_host is incomplete.
RankBytes largest_rank_bytes(const PlanCase& run, int64_t first_stage,
                             int64_t enough = std::numeric_limits<int64_t>::max());

// Returns nearly the bytes of largest_rank_bytes, in a fraction of its time for deep pipelines: with fewer
// micro-batches (with_micro_batches_of_peak), and planning only the stages that may take the most. Others count as the
// stage before.
RankBytes estimate_rank_bytes(const PlanCase& run);

}  // namespace gptrain::fit
