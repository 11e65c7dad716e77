// Where updates run, if not where the ops of a step do: their backend, their StepState, and state that is away.
#pragma once

#include <cstdint>

#include "optim/optimizer.h"
#include "parallel/away_state.h"

namespace gptrain::inline optim {

struct UpdateSite {
  UpdateContext ops;
  UpdateContext updates;  // the same state and backend as `ops`, unless updates run elsewhere
  const AwayState* away;  // null: all state is at home

  // Passes the step's state on to the updates. REQUIRES: called after each norm.
  void pass_state() const;
  // Surround the update of a unit: `begin` brings its state home, `end` takes it back and makes the updated weights
  // visible to the ops.
  void begin(int64_t unit) const;
  void end(int64_t unit) const;
};

}  // namespace gptrain::optim
