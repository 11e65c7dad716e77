// A copy of a rank's training state, from which a checkpoint is written while training goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/parameters.h"
#include "parallel/state_columns.h"

namespace gptrain {

class StateSnapshot {
 public:
  // Takes the memory: the host's, and pinned beside a device whose memory is apart. It is touched at once: the first copy
  // waits for no pages, and a machine that does not have them shows that at the start. Error(device). Borrows the
  // backend.
  StateSnapshot(Backend& backend, int64_t bytes);

  // Copies weights and columns of the pieces, which the memory has room for; on a device in a queue of its own. They stay
  // as they are until the next call. Returns the pieces with all in the host's memory, and without gradients.
  std::vector<StatePiece> copy(std::vector<StatePiece> pieces, const StateColumns& columns);

  int64_t bytes() const { return memory_->bytes(); }

 private:
  Backend& backend_;
  std::unique_ptr<SideQueue> copies_;  // null: the backend's memory is the host's
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace gptrain
