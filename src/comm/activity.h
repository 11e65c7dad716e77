// Current work of one rank, for the report if the rank is lost.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"

namespace gptrain::inline comm {

// Thread-safe. The training loop sets steps and phases; communicators note their operations, of which several may run
// at a time.
class Activity {
 public:
  struct State {
    int64_t step = -1;         // -1: none yet
    std::string phase;         // "step", "checkpoint", ...
    int64_t stage = -1;        // pipeline stage; -1: none
    int64_t micro_batch = -1;  // micro-batch on that stage; -1: none
    std::string group;         // group of the longest-running operation, else of the last one; empty: none yet
    Call call;                 // the operation itself
    bool in_progress = false;  // true: the operation still runs
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
  // Borrows `group` until the operation ends.
  void begin(const std::string& group, const Call& call) {
    const std::lock_guard lock(mutex_);
    running_.push_back({&group, call});
  }
  void end(const std::string& group) {
    const std::lock_guard lock(mutex_);
    const auto ended =
        std::find_if(running_.begin(), running_.end(), [&](const Running& running) { return running.group == &group; });
    last_group_ = group;
    last_call_ = ended->call;
    running_.erase(ended);
  }
  // Requests a stop from a process that does not train. The next heartbeat tells the other ranks.
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
  std::vector<Running> running_;  // earliest first
  std::string last_group_;
  Call last_call_;
};

}  // namespace gptrain::comm
