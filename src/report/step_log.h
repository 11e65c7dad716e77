// What a rank does in a step, event by event: of a plan, or of a step that ran. FLOPs, traffic and times are derived
// from it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/event.h"
#include "ops/ops.h"
#include "parallel/groups.h"
#include "schedule/schedule.h"

namespace gptrain {

// Position of an op in GPTRAIN_FOR_EACH_OP.
enum class OpIndex : uint8_t {
#define GPTRAIN_OP_INDEX(Op) Op,
  GPTRAIN_FOR_EACH_OP(GPTRAIN_OP_INDEX)
#undef GPTRAIN_OP_INDEX
      count
};
constexpr size_t num_ops = static_cast<size_t>(OpIndex::count);

// Names of all ops, by index.
constexpr std::array<std::string_view, num_ops> op_names = {
#define GPTRAIN_OP_NAME(Op) Op::name,
    GPTRAIN_FOR_EACH_OP(GPTRAIN_OP_NAME)
#undef GPTRAIN_OP_NAME
};

// Calls of one op, added up.
struct OpTotals {
  int64_t calls = 0;
  Flops model_flops = 0;
  Flops executed_flops = 0;
  Flops bytes_moved = 0;

  OpTotals& operator+=(const OpTotals& other);
};
using OpTable = std::array<OpTotals, num_ops>;

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
