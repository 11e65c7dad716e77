// Copies of what offloaded units save, to the host and back: for generators.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace gptrain {

// Adds actions and buffers around the units' passes. A record leaves after its unit's forward pass, and comes back into
// other memory ahead of the pass that reads it, as many passes of units as its unit's UnitOffload says.
void add_offloading(Schedule& schedule);

// An action that is of a unit's passes, and whether of its backward pass.
bool is_unit_pass(ActionKind kind);
bool is_backward(ActionKind kind);
// The first actions of the passes of units, in their order: an action belongs to the pass before it where the unit, the
// micro-batch and the direction are the same.
std::vector<size_t> first_actions_of_passes(const std::vector<Action>& actions);

// The blocks of a stage that are offloaded where `count` are: spread evenly over the blocks in the order of its chunks,
// the first one among them, at most all.
struct EvenOffload {
  std::vector<int32_t> units;
  // Their records leave while the blocks up to the next offloaded one run, and come back in half as many passes, as
  // backward takes longer: while one record is in use, the next is on its way.
  UnitOffload offload;
};
EvenOffload spread_evenly(const Stages& stages, int64_t count);

}  // namespace gptrain
