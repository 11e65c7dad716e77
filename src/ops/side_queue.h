// A second queue of a device, for copies and collectives that run beside the backend's ops. Backend::make_side_queue
// makes one; on a CPU there is none (null).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "ops/backend.h"

namespace gptrain::inline ops {

// Two threads may use a queue: the backend's thread, and one that queues work here (they may be the same). Marks order
// the two: a mark stands for the work submitted before it, and each of `num_marks` marks can be set again. REQUIRES:
// callers synchronise two threads' calls on the same mark; the queue is not used after its backend is destroyed (it may
// be destroyed later). Calls that only queue return at once. All calls THROW Error(device) if the device has failed.
class SideQueue {
 public:
  static constexpr int num_marks = 64;

  virtual ~SideQueue() = default;

  // Marks all ops called so far. Backend's thread.
  virtual void mark_ops(int mark) = 0;
  // Makes work queued here from now on run after the ops of the mark. Queueing thread.
  virtual void follow_ops(int mark) = 0;

  // Marks all work queued here so far. Queueing thread.
  virtual void mark_work(int mark) = 0;
  // Makes ops called from now on run after the work of the mark. Backend's thread.
  virtual void ops_follow(int mark) = 0;

  // Wait until the ops, or the work, of the mark have finished; return at once if the mark was never set. Backend's
  // thread.
  virtual void await_ops(int mark) = 0;
  virtual void await_work(int mark) = 0;

  // time_ops records in slot `time` when the ops called so far finish. seconds_between RETURNS the seconds between two
  // slots by the device's clock. REQUIRES: the ops of both have finished (await_ops of a later mark). Backend's thread.
  static constexpr int num_times = 8;
  virtual void time_ops(int time) = 0;
  virtual double seconds_between(int from, int to) = 0;

  // RETURNS the queue's handle for libraries of the device: a cudaStream_t.
  virtual void* handle() const = 0;

  // Queue a copy and wait for it. On return the host memory has been read or filled, and ops called afterwards see the
  // uploaded data. Queueing thread.
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;

  // Queue a copy without waiting. The host memory is read or filled at any time until work marked afterwards has
  // finished. It should come from allocate_host; with other memory the call may wait for the device. Queueing thread.
  virtual void queue_upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void queue_download(void* host, const void* device, int64_t bytes) = 0;
  // Copies in the order of the backend's ops, within device memory or between it and memory of allocate_host, which is
  // read or filled at any time until ops marked afterwards have finished. Backend's thread.
  virtual void copy_among_ops(void* to, const void* from, int64_t bytes) = 0;

  // RETURNS host memory (pinned) that these copies read and write fast. THROWS Error(machine) if there is not enough.
  virtual std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) = 0;
  // RETURNS pinned host memory that only queued copies may read and write. THROWS as allocate_host.
  virtual std::unique_ptr<DeviceMemory> allocate_for_copies(int64_t bytes) { return allocate_host(bytes); }

  // Sets a function that the backend's thread calls now and then while it waits for ops, until the queue is destroyed.
  // An exception from `check` ends the wait, e.g. when ops depend on a collective whose peer is lost.
  virtual void while_waiting(std::function<void()> check) = 0;

  // Waits until the work of the mark has finished; returns at once if the mark was never set. Queueing thread.
  virtual void finish_work(int mark) = 0;
};

// RETURNS take(). THROWS its Error with the config key that asks for the memory before the message.
template <typename Take>
std::unique_ptr<DeviceMemory> memory_for(std::string_view key, const Take& take) {
  try {
    return take();
  } catch (const Error& error) {
    throw Error(error.code(), "{}: {}", key, error.what());
  }
}

}  // namespace gptrain::ops
