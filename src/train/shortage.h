// What is said of a run that does not fit into memory.
#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"
#include "ops/target.h"
#include "parallel/memory.h"

namespace gptrain {

// Empty if `memory`, the plan of `rank` of `world_size` ranks, fits into its share of the target's. Else lines: how
// much is missing, what each setting that shrinks the plan, and that the rules of configs allow beside the others, makes of it
// (planned with no other change; the most helpful first), and what all do that go together.
std::string memory_shortage(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank,
                            const MemoryPlan& memory);

// Empty if what ranks of one machine take of its memory beside their devices is at most `host_bytes` (Target; 0: nobody
// knows). Else lines: how much is missing, and the keys that ask for it.
std::string host_shortage(const HostMemoryUse& use, int64_t host_bytes);

}  // namespace gptrain
