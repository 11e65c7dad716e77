// What the host reads of a step when the step is over, which may be while it queues the next one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "ops/step_state.h"

namespace gptrain {

class StepReadback {
 public:
  // Steps that may be queued before the first of them is read.
  static constexpr int64_t most_ahead = 2;

  struct Values {
    StepState state;
    double stops = 0;    // ranks that want to stop
    double seconds = 0;  // since the step before was over, or, where none was left to end, since this one began
  };

  // `copies` is null where the device's memory is the host's: ops have run then when their calls return. Borrows both.
  StepReadback(Backend& backend, SideQueue* copies);

  // Before a step's first op, and after its last. std::logic_error: most_ahead have not been read.
  void begin();
  void queue(const StepState* state, const double* stops);
  // Waits for the oldest step that has been queued and not been read. std::logic_error: there is none.
  Values read();
  int64_t ahead() const { return queued_ - read_; }  // steps

 private:
  struct Copied {
    StepState state;
    double stops;
  };
  // A step's end is needed until the next one is read, and another may have been queued by then.
  static constexpr int64_t most_ends = most_ahead + 1;

  static int end_of(int64_t step) { return 1 + static_cast<int>(step % most_ends); }
  static int start_of(int64_t step) { return 1 + static_cast<int>(most_ends + step % most_ahead); }
  Copied& at(int64_t step) { return copied_[step % most_ahead]; }

  Backend& backend_;
  SideQueue* const copies_;
  std::unique_ptr<DeviceMemory> pinned_;           // with `copies`
  std::array<Copied, most_ahead> here_{};          // without
  std::array<double, most_ahead> host_seconds_{};  // without: at a step's start, then its time
  Copied* const copied_;
  std::array<bool, most_ahead> follows_{};  // began before the step before was read
  int64_t queued_ = 0, read_ = 0;
};

}  // namespace gptrain
