// What one rank is doing, for the report about it when it goes missing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"

namespace gptrain {

// Any thread may call anything. Steps and phases are set by the training loop, operations by the communicators, of
// which several may run at a time.
class Activity {
 public:
  struct State {
    int64_t step = -1;         // -1: none yet
    std::string phase;         // "step", "checkpoint", ...
    int64_t stage = -1;        // of a pipeline; -1: there is none
    int64_t micro_batch = -1;  // that the stage works on; -1: none
    std::string group;         // of the operation that has run longest, or else of the last; empty: none yet
    Call call;                 // that operation
    bool in_progress = false;  // whether it still runs
  };

  void set_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
  }
  void set_phase(std::string_view phase) {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
  }
  void set_stage(int64_t stage) {
    const std::lock_guard lock(mutex_);
    stage_ = stage;
  }
  void set_micro_batch(int64_t micro_batch) {
    const std::lock_guard lock(mutex_);
    micro_batch_ = micro_batch;
  }
  // `group` outlives the operation.
  void begin(const std::string& group, const Call& call) {
    const std::lock_guard lock(mutex_);
    running_.push_back({&group, call});
  }
  void end(const std::string& group) {
    const std::lock_guard lock(mutex_);
    const auto ended = std::find_if(running_.begin(), running_.end(),
                                    [&](const Running& running) { return running.group == &group; });
    last_group_ = group;
    last_call_ = ended->call;
    running_.erase(ended);
  }
  // That the run is to stop, as somebody has told a process that takes no part in its steps. All others hear of it with
  // the next beat of the heart.
  void ask_to_stop() { stop_asked_ = true; }
  bool stop_asked() const { return stop_asked_; }
  State state() const {
    const std::lock_guard lock(mutex_);
    if (running_.empty()) return {step_, phase_, stage_, micro_batch_, last_group_, last_call_, false};
    return {step_, phase_, stage_, micro_batch_, *running_.front().group, running_.front().call, true};
  }

 private:
  struct Running {
    const std::string* group;
    Call call;
  };

  std::atomic<bool> stop_asked_ = false;
  mutable std::mutex mutex_;
  int64_t step_ = -1;
  std::string phase_;
  int64_t stage_ = -1;
  int64_t micro_batch_ = -1;
  std::vector<Running> running_;  // the one that began first in front
  std::string last_group_;
  Call last_call_;
};

}  // namespace gptrain
