// Where updates run, if not where the ops of a step do: their backend, their StepState, and state that is away.
#pragma once

#include <cstdint>

#include "optim/optimizer.h"
#include "parallel/update_lane.h"

namespace gptrain::inline optim {

struct UpdateSite {
  UpdateContext ops;
  UpdateContext updates;  // the same state and backend as `ops`, unless updates run elsewhere
  UpdateLane* lane;       // null: updates run when they are called

  // Waits for all updates, and passes the step's state on to the next ones. REQUIRES: called after each norm.
  void pass_state() const;
  // Ends the use of state that is away before the updates.
  void end_measuring() const;
  // Surround the update of a unit: `begin` brings its state home, `end` takes it back and makes the updated weights
  // visible to the ops. With a lane both only say so to its thread.
  void begin(int64_t unit) const;
  void end(int64_t unit) const;

 private:
  void log_copy(int64_t unit, bool writes) const;
};

}  // namespace gptrain::optim
