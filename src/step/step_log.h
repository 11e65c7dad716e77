// What a rank does in a step, event by event: of a plan, or of a step that ran. FLOPs, traffic and times are derived
// from it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/event.h"
#include "ops/op_table.h"
#include "parallel/groups.h"
#include "schedule/schedule.h"

namespace gptrain {

using EventBlock = std::vector<Event>;

// An action of the step's schedule, without its operands.
struct LoggedAction {
  ActionKind kind;
  int32_t micro_batch = -1;
  int32_t unit = -1;
  int32_t block = 0;  // of its events
};

// A step of a million actions has few that differ: those that ask for equal events share a block.
struct StepLog {
  Stages stages = {};  // where the units of the actions run, and which stage's step it is
  std::vector<EventBlock> blocks = {};
  std::vector<LoggedAction> actions = {};
  EventBlock before = {}, after = {};  // of no action: how the step begins and ends
};

// By op.
OpTable op_table(const StepLog& log);
// By lane, kind of group and operation.
LaneTraffic lane_traffic(const StepLog& log);

}  // namespace gptrain
