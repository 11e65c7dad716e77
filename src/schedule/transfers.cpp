#include "schedule/transfers.h"

#include <algorithm>

namespace gptrain::inline schedule {
namespace {

Action action_of(const Stages& stages, const StageMessage& message, bool sends, bool begins, int32_t buffer) {
  // The action belongs to this stage's unit next to the cut: outputs leave the last unit of a chunk and arrive at the
  // first unit of the next.
  const int32_t at_end = stages.end_unit(message.chunk) - 1;
  const int32_t at_start = stages.first_unit(message.chunk);
  Action action{.kind = ActionKind::load, .micro_batch = message.micro_batch};
  if (message.gradient) {
    action.kind = sends ? (begins ? ActionKind::send_d_input : ActionKind::await_d_input_sent)
                        : (begins ? ActionKind::receive_d_output : ActionKind::await_d_output);
    action.unit = sends ? at_start : at_start - 1;
  } else {
    action.kind = sends ? (begins ? ActionKind::send_output : ActionKind::await_output_sent)
                        : (begins ? ActionKind::receive_input : ActionKind::await_input);
    action.unit = sends ? at_end : at_end + 1;
  }
  action[transfer_of(action.kind)->operand] = buffer;
  return action;
}

}  // namespace

StageTransfers::StageTransfers(Schedule& schedule, const std::vector<std::vector<Pass>>& passes) : schedule_(schedule) {
  for (size_t way = 0; way < num_ways; ++way) {
    const std::vector<StageMessage> messages = incoming(schedule.options.stages, passes, static_cast<Way>(way));
    receives_[way].expected.reserve(messages.size());
    for (const StageMessage& message : messages) receives_[way].expected.push_back({message});
  }
}

void StageTransfers::begin() {
  for (Receives& receives : receives_) begin_receives(receives, 1);
}

void StageTransfers::begin_receives(Receives& receives, size_t count) {
  const Stages& stages = schedule_.options.stages;
  for (count = std::min(count, receives.expected.size()); receives.begun < count; ++receives.begun) {
    Expected& expected = receives.expected[receives.begun];
    const StageMessage& message = expected.message;
    // Buffer::unit is the unit whose output stream, or gradient of it, the buffer holds.
    const int32_t unit = message.gradient ? stages.first_unit(message.chunk) - 1 : stages.end_unit(message.chunk) - 1;
    expected.buffer = static_cast<int32_t>(schedule_.buffers.size());
    schedule_.buffers.push_back({.kind = message.gradient ? BufferKind::stream_gradient : BufferKind::stream,
                                 .micro_batch = message.micro_batch,
                                 .unit = unit});
    schedule_.actions.push_back(action_of(stages, message, false, true, expected.buffer));
  }
}

int32_t StageTransfers::receive(const StageMessage& message) {
  Receives& receives = receives_[route_of(schedule_.options.stages, message).way];
  const auto found = std::find_if(receives.expected.begin() + static_cast<std::ptrdiff_t>(receives.oldest),
                                  receives.expected.end(), [&](const Expected& e) { return e.message == message; });
  const auto index = static_cast<size_t>(found - receives.expected.begin());
  begin_receives(receives, index + 1);
  found->arrived = true;
  schedule_.actions.push_back(action_of(schedule_.options.stages, message, false, false, found->buffer));
  begin_receives(receives, index + 2);
  while (receives.oldest < receives.expected.size() && receives.expected[receives.oldest].arrived) ++receives.oldest;
  return found->buffer;
}

void StageTransfers::send(const StageMessage& message, int32_t buffer) {
  const Stages& stages = schedule_.options.stages;
  std::deque<Action>& sends = sends_[route_of(stages, message).way];
  if (sends.size() == most_sends) {
    schedule_.actions.push_back(sends.front());
    sends.pop_front();
  }
  schedule_.actions.push_back(action_of(stages, message, true, true, buffer));
  sends.push_back(action_of(stages, message, true, false, buffer));
}

void StageTransfers::finish() {
  for (std::deque<Action>& sends : sends_) {
    for (const Action& await : sends) schedule_.actions.push_back(await);
    sends.clear();
  }
}

}  // namespace gptrain::schedule
