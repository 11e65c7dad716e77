// What a rank does in a step, event by event: of a plan, or of a step that ran. FLOPs, traffic and times are derived
// from it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/event.h"
#include "ops/ops.h"
#include "parallel/groups.h"
#include "schedule/schedule.h"

namespace gptrain {

#define GPTRAIN_ONE_OP(Op) +1
constexpr size_t num_ops = 0 GPTRAIN_FOR_EACH_OP(GPTRAIN_ONE_OP);
#undef GPTRAIN_ONE_OP

// Position of an op in GPTRAIN_FOR_EACH_OP.
template <typename Wanted>
constexpr size_t op_index = [] {
  size_t index = 0, found = num_ops;
#define GPTRAIN_FIND_OP(Op)                      \
  if (std::is_same_v<Wanted, Op>) found = index; \
  ++index;
  GPTRAIN_FOR_EACH_OP(GPTRAIN_FIND_OP)
#undef GPTRAIN_FIND_OP
  return found;
}();

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
