// memory.offload_activations = "hidden": of how many blocks what they save can be copied to the host and back while the
// device computes.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"
#include "report/step_log.h"
#include "schedule/recompute_chain.h"

namespace gptrain {

// In the given choices of all units: the blocks of each stage that `count` are, spread evenly; all_offload: all.
UnitChoices offload(const RunConfig& config, UnitChoices choices, int64_t count);

// What an action's events take on a usual device of the target's kind (see nominal_seconds), whose full rates no op
// reaches.
double nominal_pass_seconds(const EventBlock& events, const Target& target);
// What a copy between a usual GPU and its host takes, each way by itself.
double nominal_copy_seconds(int64_t bytes);

// The most blocks of a rank of the stage, by the times of ops and copies on a usual device of the target's kind, whose
// copies the passes hardly wait for. None on the CPU, whose copies are made among the ops. The stage's first rank is
// planned, so that all ranks of a stage come to the same number.
int64_t hidden_blocks(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage);

}  // namespace gptrain
