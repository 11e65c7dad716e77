// What one rank is doing, for the report about it when it goes missing.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/call.h"

namespace gptrain {

// Any thread may call anything. Steps and phases are set by the training loop, operations by the communicators.
class Activity {
 public:
  struct State {
    int64_t step = -1;         // -1: none yet
    std::string phase;         // "start", "forward", "checkpoint", ...
    std::string group;         // of the last operation; empty: none yet
    Call call;                 // the last operation
    bool in_progress = false;  // whether it still runs
  };

  void set_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    state_.step = step;
  }
  void set_phase(std::string_view phase) {
    const std::lock_guard lock(mutex_);
    state_.phase = phase;
  }
  void begin(std::string_view group, const Call& call) {
    const std::lock_guard lock(mutex_);
    state_.group = group;
    state_.call = call;
    state_.in_progress = true;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    state_.in_progress = false;
  }
  State state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  mutable std::mutex mutex_;
  State state_;
};

}  // namespace gptrain
