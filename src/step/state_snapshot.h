// A copy of a rank's training state in host memory, from which a checkpoint is written while training goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/parameters.h"
#include "parallel/state_columns.h"

namespace gptrain::inline step {

class StateSnapshot {
 public:
  // Takes `bytes` of host memory, pinned if a device has its own memory. Touches all pages, so that the first copy is
  // fast and a machine without enough memory fails at the start. Borrows the backend. THROWS Error(machine) if
  // memory is short.
  StateSnapshot(Backend& backend, int64_t bytes);

  // Returns the address of a value that is in memory of the host though the backend has its own; null for others.
  using HostAddress = std::function<const std::byte*(const void*)>;

  // Copies weights and optimizer state of the pieces, on a device in a queue of its own, and waits for the copies.
  // Returns the pieces with pointers to the copies, which are valid until the next call, and null gradients. REQUIRES:
  // the memory has room for them.
  std::vector<StateSlice> copy(std::vector<StateSlice> pieces, const StateColumns& columns, const HostAddress& on_host);

  int64_t bytes() const { return memory_->bytes(); }

 private:
  Backend& backend_;
  std::unique_ptr<SideQueue> copy_queue_;  // null: the backend's memory is the host's
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace gptrain::step
