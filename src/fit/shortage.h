// The message for a run that does not fit into memory: how much is missing, and settings that would help.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "fit/plan_world.h"
#include "mesh/mesh.h"
#include "ops/target.h"
#include "parallel/memory.h"

namespace gptrain::inline fit {

// The memory that the ranks of a run take.
struct WorldMemory {
  int64_t largest_rank = 0;                  // the rank that messages about device memory describe
  MemoryPlan largest;                        // plan of that rank
  std::vector<MemoryPlan::ByClass> on_host;  // by kind of rank, like WorldPlan::on_host
  std::vector<int64_t> node_of_rank;         // by rank: number of its node, whose ranks share one host memory
};

// Combines the plans that the ranks made for themselves. `plans` and `device_bytes`, the device memory for each rank,
// are by rank. largest_rank is the first rank that lacks the most bytes. As in plan_world, only the first data rank of
// each stage and tensor rank is considered, unless all of these fit.
WorldMemory world_memory(const std::vector<MemoryPlan>& plans, const std::vector<int64_t>& device_bytes,
                         const Mesh& mesh, std::vector<int64_t> node_of_rank);

// Returns an empty string if the run fits: the largest rank into its share of the target's device memory, and the ranks
// of the fullest node into the target's host memory (all nodes have the same). Otherwise returns lines for the user.
//
// For a device: the missing bytes, then a line for each setting that saves memory and obeys the rules of configs, the
// most helpful first: the bytes with this setting alone, whether it changes training, and the step time as a multiple
// (by fit/step_times.h, so that a run and its dry run print the same). Bytes of a step with very many passes have a
// "~", as they are those of a step with fewer. The last line is for all settings that can be combined. Leaves out
// settings that need more host memory than there is. Then follow the lines of host_shortage.
std::string memory_shortage(const RunConfig& config, const Target& target, const WorldMemory& world);

// Returns an empty string if the ranks of one node fit into `host_bytes` of host memory (Target::host_bytes; 0:
// unknown, not checked). Otherwise returns lines: the missing bytes, and the keys that cause the use, with values that
// take less.
std::string host_shortage(const MemoryConfig& memory, int64_t micro_batch, const HostMemoryUse& use,
                          int64_t host_bytes);

}  // namespace gptrain::fit
