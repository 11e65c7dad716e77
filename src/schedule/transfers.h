// Sends and receives around a stage's passes, for functions that make schedules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/enum_array.h"
#include "schedule/schedule.h"

namespace gptrain::inline schedule {

// In each direction, messages arrive in the order in which the neighbour sends them. A receive begins one message
// before it is needed, so that the neighbour's send finds it. Two sends may be under way, so that a stage ahead of its
// neighbour does not wait for it.
class StageTransfers {
 public:
  // Borrows `schedule`, of the stage schedule.options.stages.stage; all methods add actions and buffers to it.
  // `passes`: the passes of all stages in order, a list for each stage; not needed afterwards.
  StageTransfers(Schedule& schedule, const std::vector<std::vector<Pass>>& passes);

  // Begins the first receive in each direction. Called once, before the other methods.
  void begin();
  // Awaits the message and returns its buffer, a new one, as an index in schedule.buffers. Begins the next receive of
  // the direction. REQUIRES: another stage sends the message; it was not received before.
  int32_t receive(const StageMessage& message);
  // Begins to send the buffer, after awaiting the oldest send if two are under way in the direction. The buffer is read
  // until a later `send` or `finish` awaits this one. REQUIRES: the actions that fill it have been added.
  void send(const StageMessage& message, int32_t buffer);
  // Awaits the sends that are still under way. Called once, at the end.
  void finish();

 private:
  static constexpr size_t most_sends = 2;

  struct Expected {
    StageMessage message;
    int32_t buffer = -1;  // -1 until its receive has begun
    bool arrived = false;
  };
  struct Receives {
    std::vector<Expected> expected;
    size_t begun = 0;
    size_t oldest = 0;  // index of the first message that has not arrived
  };

  void begin_receives(Receives& receives, size_t count);

  Schedule& schedule_;
  EnumArray<Way, Receives, num_ways> receives_;
  EnumArray<Way, std::deque<Action>, num_ways> sends_;  // the awaiting action of each send under way
};

}  // namespace gptrain::schedule
