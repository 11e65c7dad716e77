// Sends and receives around a stage's passes: for generators.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "schedule/schedule.h"

namespace gptrain {

// On each way, messages arrive in the order in which the neighbour sends them, and a receive is begun one message ahead
// of the one that is needed, so that it is there when the neighbour has it. Two sends may be under way: a stage that is
// ahead of its neighbour does not wait for it.
class StageTransfers {
 public:
  // Adds actions and buffers to `schedule`, which outlives this. `passes`: of all stages.
  StageTransfers(Schedule& schedule, const std::vector<std::vector<Pass>>& passes);

  // Begins the first receive on each way.
  void begin();
  // Awaits the message, which comes from another stage, and returns the buffer that it is in.
  int32_t receive(const StageMessage& message);
  // Sends the buffer, which is filled.
  void send(const StageMessage& message, int32_t buffer);
  // Waits until everything is sent.
  void finish();

 private:
  static constexpr size_t most_sends = 2;

  struct Expected {
    StageMessage message;
    int32_t buffer = -1;  // once its receive has begun
    bool arrived = false;
  };
  struct Receives {
    std::vector<Expected> expected;
    size_t begun = 0;
    size_t oldest = 0;  // that has not arrived
  };

  void begin_receives(Receives& receives, size_t count);

  Schedule& schedule_;
  std::array<Receives, num_ways> receives_;
  std::array<std::deque<Action>, num_ways> sends_;  // awaiting actions of those under way
};

}  // namespace gptrain
