// The average of the weights that the optimizer keeps (optimizer.ema) in the weights' place, for an evaluation.
#pragma once

#include "step/training_step.h"

namespace gptrain {

class AveragedWeights {
 public:
  // Puts the average where the step's weights are, rounded as they are, and the weights where its gradients are, which
  // nobody reads between two steps. The optimizer has the column; no step is under way, and none begins before
  // `restore`. Borrows the step. Collective over the world, as TrainingStep::weights_changed is.
  explicit AveragedWeights(TrainingStep& step);
  // The weights again, to the bit. Collective over the world.
  void restore();

 private:
  TrainingStep& step_;
};

}  // namespace gptrain
