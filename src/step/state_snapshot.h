// A copy of a rank's training state in host memory, from which a checkpoint is written while training goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/parameters.h"
#include "parallel/state_columns.h"

namespace gptrain::inline step {

class StateSnapshot {
 public:
  // Takes `bytes` of host memory, of which the first `clone_bytes` are for AwayClone, pinned if a device has its own
  // memory. Touches all pages, so that the first copy is fast and a machine without enough memory fails at the start.
  // Borrows the backend. THROWS Error(machine) if memory is short.
  StateSnapshot(Backend& backend, int64_t bytes, int64_t clone_bytes = 0);

  struct Source {
    bool is_cloned = false;              // the value is not copied
    const std::byte* on_host = nullptr;  // the value, if it is in memory of the host though the backend has its own
  };
  using FindSource = std::function<Source(const void*)>;

  // Copies weights and optimizer state of the pieces, on a device in a queue of its own, and waits for the copies.
  // Returns the pieces with pointers to the copies, which are valid until the next call, with the given pointers of
  // values that are cloned, and with null gradients. REQUIRES: the memory has room for the copies.
  std::vector<StateSlice> copy(std::vector<StateSlice> pieces, const StateColumns& columns, const FindSource& source);

  int64_t bytes() const { return memory_->bytes(); }
  std::span<std::byte> clone_memory() const { return {memory_->data(), static_cast<size_t>(clone_bytes_)}; }

 private:
  Backend& backend_;
  const int64_t clone_bytes_;
  std::unique_ptr<SideQueue> copy_queue_;  // null: the backend's memory is the host's
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace gptrain::step
