// Copies of offloaded units' records to the host and back, for functions that make schedules.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace gptrain::inline schedule {

// Adds the actions and buffers of the copies. The copy of a record to the host begins after its unit's forward pass;
// the copy back, to other memory of the device, begins UnitOffload::comes_ahead passes before the pass that reads it.
void add_offloading(Schedule& schedule);

// Whether the action is part of a pass of a unit, and whether it is part of a backward pass.
bool is_unit_pass(ActionKind kind);
bool is_backward(ActionKind kind);
// Returns the indices of the first actions of all passes of units, rising. Consecutive actions with the same unit,
// micro-batch and direction are one pass.
std::vector<size_t> first_actions_of_passes(const std::vector<Action>& actions);

// A choice of offloaded blocks on one stage.
struct EvenOffload {
  std::vector<int32_t> units;
  // Timing of all their copies. The copy of a record to the host takes the passes up to the next offloaded block, the
  // copy back half as many, as backward passes take longer. The next record arrives while one is in use.
  UnitOffload offload;
};
// Returns `count` blocks, or all if the stage has fewer, spread evenly over its blocks in the order of its chunks. The
// first block is always among them.
EvenOffload spread_evenly(const Stages& stages, int64_t count);

}  // namespace gptrain::schedule
