// Puts the average of the weights (optimizer.ema) in the place of the weights, for an evaluation.
#pragma once

#include "step/training_step.h"

namespace gptrain::inline step {

class AveragedWeights {
 public:
  // Saves the weights in the memory of the gradients, which is free between two steps, and writes the average, rounded
  // to their dtype, in their place. Borrows the step. Collective over the world.
  // REQUIRES: the optimizer has the column `ema`; no step runs until `restore`.
  explicit AveragedWeights(TrainingStep& step);
  // Restores the weights, to the bit. Collective over the world.
  void restore();

 private:
  TrainingStep& step_;
};

}  // namespace gptrain::step
