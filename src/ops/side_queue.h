// A queue of a device beside the one that a backend's ops run in, for what moves data while they run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "ops/backend.h"

namespace gptrain {

// Two threads use it: the backend's marks where the ops are, and one other, or the same, queues work here. Each of
// `num_marks` marks keeps what was last marked with it. Callers see to it that one thread's call on a mark comes before
// the other's on the same mark. A call that only queues waits for nothing. A queue may be destroyed after its backend,
// but not be used.
class SideQueue {
 public:
  static constexpr int num_marks = 64;

  virtual ~SideQueue() = default;

  // The backend's thread: marks the ops that were called so far.
  virtual void mark_ops(int mark) = 0;
  // The other thread: what it queues from now on runs after the ops so marked.
  virtual void follow_ops(int mark) = 0;

  // The other thread: marks the work that it has queued here so far.
  virtual void mark_work(int mark) = 0;
  // The backend's thread: ops that are called from now on run after the work so marked.
  virtual void ops_follow(int mark) = 0;

  // The backend's thread waits until what was so marked is over; at once where nothing was.
  virtual void await_ops(int mark) = 0;
  virtual void await_work(int mark) = 0;

  // The backend's thread: `time` keeps when the ops that were called so far are over. Once those of both are (an
  // await_ops of a later mark), the seconds from one to the other, by the device's clock.
  static constexpr int num_times = 8;
  virtual void time_ops(int time) = 0;
  virtual double seconds_between(int from, int to) = 0;

  // What libraries of the device know the queue by: a cudaStream_t.
  virtual void* handle() const = 0;

  // Copies, queued and awaited: when a call returns, the host memory is read or filled, and ops that are called from
  // then on find what was uploaded.
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;

  // Copies, queued only. The host's memory is of allocate_host (elsewhere the call may wait for the device); it is read
  // or filled at any time until work that is marked afterwards is over.
  virtual void queue_upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void queue_download(void* host, const void* device, int64_t bytes) = 0;
  // The backend's thread: a copy among the ops, of the device's memory, or between it and that of allocate_host, which
  // is then read or filled at any time until ops that are marked afterwards are over.
  virtual void copy_among_ops(void* to, const void* from, int64_t bytes) = 0;

  // Memory of the host from and to which these copies are fast. Error(device): it cannot be had.
  virtual std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) = 0;
  // Likewise, of memory that nothing but queued copies reads and writes.
  virtual std::unique_ptr<DeviceMemory> allocate_for_copies(int64_t bytes) { return allocate_host(bytes); }

  // `check` is called now and then, by the backend's thread, while that waits for ops, until the queue is destroyed.
  // What it throws ends the wait: that of ops that follow work which will never end.
  virtual void while_waiting(std::function<void()> check) = 0;
};

// What `take` returns. Its Error says which key of the config asks for the memory.
template <typename Take>
std::unique_ptr<DeviceMemory> memory_for(std::string_view key, const Take& take) {
  try {
    return take();
  } catch (const Error& error) {
    throw Error(error.code(), "{}: {}", key, error.what());
  }
}

}  // namespace gptrain
