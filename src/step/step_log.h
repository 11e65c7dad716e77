// The events of a rank's step, planned or run. FLOPs, traffic and times are derived from them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/event.h"
#include "ops/op_table.h"
#include "parallel/groups.h"
#include "schedule/schedule.h"

namespace gptrain::inline step {

using EventBlock = std::vector<Event>;

// An action of the step's schedule, without its operands.
struct LoggedAction {
  ActionKind kind;
  int32_t micro_batch = -1;
  int32_t unit = -1;
  int32_t block = 0;  // index of its events in StepLog::blocks
};

// A step may have a million actions, but few that differ: actions with equal events share a block.
struct StepLog {
  Stages stages = {};  // the stages of all units, and the stage of this rank
  std::vector<EventBlock> blocks = {};
  std::vector<LoggedAction> actions = {};
  EventBlock before = {};    // events before the first action
  EventBlock after = {};     // events after the last action
  int64_t landed_units = 3;  // StateLayout::most_landed
};

// Returns the sums by op.
OpTable op_table(const StepLog& log);
// Returns the bytes that the rank sends by lane, kind of group and operation.
LaneTraffic lane_traffic(const StepLog& log);

}  // namespace gptrain::step
