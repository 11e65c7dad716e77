// Copies between a GPU and its host that the rank's thread begins.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/backend.h"
#include "ops/side_queue.h"

namespace gptrain::inline parallel {

// A queue of the device, whose copies begin after the ops called so far.
class RankQueue {
 public:
  using Ticket = int64_t;
  static constexpr Ticket done = 0;

  explicit RankQueue(Backend& gpu) : queue_(gpu.make_side_queue()) {}

  Ticket download(void* host, const void* device, int64_t bytes) {
    begin();
    queue_->queue_download(host, device, bytes);
    return end();
  }
  Ticket upload(void* device, const void* host, int64_t bytes) {
    begin();
    queue_->queue_upload(device, host, bytes);
    return end();
  }
  // Makes ops called from now on run after the copy.
  void follow(Ticket ticket) {
    if (ticket != done) queue_->ops_follow(mark_of(ticket));
  }
  // Waits until the copy has ended.
  void wait(Ticket ticket) {
    if (ticket != done) queue_->await_work(mark_of(ticket));
  }
  void wait_all() { wait(last_); }

 private:
  // Marks are used in turn. One that was set again stands for a later copy, which ends after the earlier one.
  static int mark_of(Ticket ticket) { return static_cast<int>(ticket % SideQueue::num_marks); }
  void begin() {
    const int mark = mark_of(++last_);
    queue_->mark_ops(mark);
    queue_->follow_ops(mark);
  }
  Ticket end() {
    queue_->mark_work(mark_of(last_));
    return last_;
  }

  const std::unique_ptr<SideQueue> queue_;
  Ticket last_ = done;
};

}  // namespace gptrain::parallel
