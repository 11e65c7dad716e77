// Copies of gradients and weights between a GPU and updates on its host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/backend.h"
#include "ops/side_queue.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// Returns the bytes that move to the host before a unit's update, or back after it (ParameterStore::staged_units).
int64_t passed_bytes(const ParameterStore& parameters, int64_t unit, bool to_host);

// One queue of the device for each direction. The rank's thread calls mark_sums, follow and upload, and while the lane
// is idle finish and clear. The lane's thread calls the others.
class UpdateCopies {
 public:
  // Borrows all. `of_ops`, `of_updates`: the rank's parameters as ops and as updates see them.
  UpdateCopies(Backend& gpu, const ParameterStore& of_ops, const ParameterStore& of_updates);
  // Waits for the copies under way.
  ~UpdateCopies();
  UpdateCopies(const UpdateCopies&) = delete;
  UpdateCopies& operator=(const UpdateCopies&) = delete;

  // Says that the ops called so far make the values that the unit's update reads.
  void mark_sums(int64_t unit);
  // Begins to copy the unit's gradients, and weights that its update reads, to the host. Units come in the order of
  // their updates, at most one before the previous unit's weights are given back.
  void bring(int64_t unit);
  // Waits for the copies of `bring`. Weights that the update only writes are then zero.
  void await_brought(int64_t unit);
  // Begins to copy the weights that the update has written to the device.
  void give_back(int64_t unit);
  // Waits for the copies of `give_back`.
  void await_given(int64_t unit) { to_device_->finish_work(mark_of(unit)); }
  // Makes ops called from now on run after give_back of the unit.
  void follow(int64_t unit);
  // Waits for all copies under way. Rank's thread, while the lane is idle.
  void finish();
  // Zeroes the memory on the host in which the unit's update writes weights.
  void clear(int64_t unit) const;
  // Copies the weights to the device in the order of its ops.
  void upload(int64_t unit, Backend& ops) const;

 private:
  struct Span {
    std::byte* device;
    std::byte* host;
    int64_t bytes;
  };
  std::vector<Span> spans(int64_t unit, bool to_host) const;
  // A mark stands for later work, too, once another unit has the same.
  static int mark_of(int64_t unit) { return static_cast<int>(unit % SideQueue::num_marks); }

  const std::unique_ptr<SideQueue> to_host_, to_device_;
  const ParameterStore& of_ops_;
  const ParameterStore& of_updates_;
  std::mutex mutex_;                                      // guards marks that both threads use
  std::array<int64_t, StagedUnits::num_slots> in_slots_;  // units that were brought last; negative: none
};

}  // namespace gptrain::parallel
