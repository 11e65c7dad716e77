// The backend and state of updates, which may run on another backend than the ops of a step, or beside them.
#pragma once

#include <cstdint>

#include "optim/optimizer.h"
#include "parallel/update_lane.h"

namespace gptrain::inline optim {

// Adds up f64 `sums` in device memory over all ranks, in place. Collective over the world.
void sum_over_world(RankGroups& groups, const Matrix& sums);

// Used by StepUpdate. The rank's thread calls all functions.
struct UpdateSite {
  UpdateContext ops;
  UpdateContext updates;  // the same state and backend as `ops`, unless updates run elsewhere
  UpdateLane* lane;       // null: updates run when they are called

  // Waits for the updates of the step before, and copies the ops' StepState to that of the updates. Call after each
  // norm, before the first update.
  void pass_state() const;
  // Adds up f64 sums of Optimizer::measure over all ranks, in place. Collective over the world.
  void sum(const Matrix& sums) const;
  // Releases state that Optimizer::measure has read from the disk or the host. Call after it, before the first update.
  void end_measuring() const;
  // Copies the unit's summed gradients to where its update reads them, with Sharding::updates_delayed; else no effect.
  // REQUIRES: the unit's update in the step before is over.
  void pass_gradients(int64_t unit) const;
  // Returns whether the unit's update runs where the ops do, although those of units that are away run elsewhere.
  bool runs_with_ops(int64_t unit) const {
    return lane != nullptr && lane->beside_device() && !ops.parameters.state_layout().is_away(unit);
  }
  // Surround the update of a unit. With a lane, its thread runs the ops called between them: it reads the unit's state
  // before them, writes the state and the weights after them, and UpdateLane::await waits for the update. Without a
  // lane, `end` waits until the ops' backend can read the updated weights.
  void begin(int64_t unit) const;
  void end(int64_t unit) const;

 private:
  void keep_weights(int64_t unit) const;
};

}  // namespace gptrain::optim
