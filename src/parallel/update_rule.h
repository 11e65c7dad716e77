// The update as the executor plays it.
#pragma once

#include <cstdint>

namespace gptrain::inline parallel {

// The optimizer's actions in a step. Implemented in src/optim. Called by the thread that plays the schedule.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Computes the global gradient norm, and from it the clipping factor and whether the step is skipped. Collective.
  virtual void norm() = 0;
  // Updates one unit's weights, or begins to.
  virtual void update(int64_t unit) = 0;
  // Takes note of the sum of a unit's gradients, in ParameterStore::gradients_piece, if sums are away before the norm.
  virtual void measure(int64_t /*unit*/) {}
  // Waits until the unit's last update is over. Called before ops read its weights or write its gradients.
  virtual void await_update(int64_t /*unit*/) {}
};

}  // namespace gptrain::parallel
