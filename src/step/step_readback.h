// Reads the results of a step on the host once the step is over. The host may have queued the next step by then.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "ops/step_state.h"

namespace gptrain::inline step {

class StepReadback {
 public:
  // The most steps queued and not yet read.
  static constexpr int64_t most_ahead = 2;

  struct Values {
    StepState state;
    double stops = 0;          // number of ranks that want to stop
    std::vector<double> sums;  // sums of the step's statistics
    double seconds = 0;        // time since the step began, or since the step before ended if that was not read by then
  };

  // `copy_queue`: the device's queue; null if the device's memory is the host's, where ops have run when their calls
  // return. Borrows both. `num_sums`: number of sums of the step's statistics.
  StepReadback(Backend& backend, SideQueue* copy_queue, int64_t num_sums);

  // Call before a step's first op. THROWS std::logic_error if most_ahead steps have not been read.
  void begin();
  // Queues copies of the results. Call after the step's last op.
  void queue(const StepState* state, const double* stops, const double* sums);
  // Waits for the oldest step that has been queued and not read, and returns its results. THROWS std::logic_error if
  // there is none.
  Values read();
  // Returns the number of steps queued and not yet read.
  int64_t ahead() const { return queued_ - read_; }

 private:
  struct Copied {
    StepState state;
    double stops;
  };
  // Number of ends kept: a step's end is needed until the next step is read, and another may be queued by then.
  static constexpr int64_t most_ends = most_ahead + 1;

  static int end_of(int64_t step) { return 1 + static_cast<int>(step % most_ends); }
  static int start_of(int64_t step) { return 1 + static_cast<int>(most_ends + step % most_ahead); }
  Copied& at(int64_t step) { return copied_[step % most_ahead]; }
  double* sums_at(int64_t step) { return sums_ + step % most_ahead * num_sums_; }
  int64_t sums_bytes() const { return num_sums_ * static_cast<int64_t>(sizeof(double)); }

  Backend& backend_;
  SideQueue* const copy_queue_;
  std::unique_ptr<DeviceMemory> pinned_;           // results, if there is a copy queue
  std::array<Copied, most_ahead> here_{};          // results, if there is no copy queue
  std::array<double, most_ahead> host_seconds_{};  // if there is no copy queue: the start of a step, then its time
  Copied* const copied_;                           // results in use: pinned_ or here_
  const int64_t num_sums_;
  std::vector<double> sums_here_;           // sums, if there is no queue
  double* const sums_;                      // sums in use
  std::array<bool, most_ahead> follows_{};  // true: the step began before the step before was read
  int64_t queued_ = 0, read_ = 0;
};

}  // namespace gptrain::step
