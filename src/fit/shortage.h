// What is said of a run that does not fit into memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "fit/plan_world.h"
#include "mesh/mesh.h"
#include "ops/target.h"
#include "parallel/memory.h"

namespace gptrain {

// What the ranks of a run take, and where they are.
struct WorldMemory {
  int64_t largest_rank = 0;                  // what is said of devices is said of it
  MemoryPlan largest;                        // its plan
  std::vector<MemoryPlan::ByClass> on_host;  // as WorldPlan has it
  std::vector<int64_t> node_of_rank;         // by rank, the number of its node: what shares a host's memory
};

// Of ranks that have planned themselves (`plans`, by rank) for devices that have `rooms` for them. The largest is the
// first of those that lack the most. The first data ranks stand for the others, as in a plan of the world; one of the
// others is it only where these fit.
WorldMemory world_memory(const std::vector<MemoryPlan>& plans, const std::vector<int64_t>& rooms, const Mesh& mesh,
                         std::vector<int64_t> node_of_rank);

// Empty if what ranks take fits: of devices the largest rank into its share of the target's memory, of hosts the
// fullest node's into the target's (nodes are thought to be alike). Else lines. Of devices: how much is missing, what
// each setting that shrinks the plan, and that the rules of configs allow beside the others, makes of it (planned with
// no other change; the most helpful first), whether it changes what is trained, and how many times as long a step then
// is (by fit/step_times.h, so that a run and its dry run say the same), and what all do that go together; nothing for
// which a host would have too little, unless it has already and takes no more. Then those of host_shortage.
std::string memory_shortage(const RunConfig& config, const Target& target, const WorldMemory& world);

// Empty if what ranks of one machine take of its memory beside their devices is at most `host_bytes` (Target; 0: nobody
// knows). Else lines: how much is missing, and the keys that ask for it, with what takes less that the rules allow.
std::string host_shortage(const RunConfig& config, const HostMemoryUse& use, int64_t host_bytes);

}  // namespace gptrain
