// A queue of a device beside the one that a backend's ops run in, for what moves data while they run.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/backend.h"

namespace gptrain {

// Two threads use it: the backend's marks where the ops are, and one other queues work here. Each of `num_marks` marks
// keeps what was last marked with it; that one thread's call on a mark comes before the other's on the same mark is the
// callers' affair. A queue may be destroyed after its backend, but not be used.
class SideQueue {
 public:
  static constexpr int num_marks = 64;

  virtual ~SideQueue() = default;

  // The backend's thread: marks the ops that were called so far.
  virtual void mark_ops(int mark) = 0;
  // The other thread: what it queues from now on runs after the ops so marked.
  virtual void follow_ops(int mark) = 0;

  // Copies, queued and awaited: when a call returns, the host memory is read or filled, and ops that are called from
  // then on find what was uploaded.
  virtual void upload(void* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const void* device, int64_t bytes) = 0;

  // Memory of the host from and to which these copies are fast. Error(device): it cannot be had.
  virtual std::unique_ptr<DeviceMemory> allocate_host(int64_t bytes) = 0;
};

}  // namespace gptrain
