// The block of device memory that holds all data of a step that differ from step to step.
//
// Ops read it through a pointer. So an op's arguments depend on its action only, and the device skips a step by a
// predicate without the host reading it.
#pragma once

#include <cstdint>

#include "base/loss_scale.h"

namespace gptrain::inline ops {

struct StepState {
  // Written by the host before the step.
  float learning_rate = 0;
  float inverse_tokens = 0;     // 1 / counted_targets
  int64_t counted_targets = 0;  // number of counted tokens in the global batch

  // Cleared by the host before the step, written by ops in it.
  double loss_sum = 0;        // sum of the cross-entropy of the counted tokens so far, natural log
  double squared_norm = 0;    // squared norm of all gradients before clipping, the loss scale divided out
  float gradient_scale = 0;   // factor of gradients in the update: clips them and divides out the loss scale
  int32_t skip = 0;           // 1: the loss or a gradient is not finite and nothing is updated
  float step_loss_scale = 1;  // loss scale of this step's gradients
  float largest_score = 0;    // largest attention score of the step; 0 without QK-clip
  int32_t clipped_heads = 0;  // heads whose weights QK-clip scaled

  // Kept from step to step (saved in checkpoints).
  int64_t updates = 0;   // steps that were not skipped
  LossScale loss_scale;  // scale of the next step's loss gradients
};

}  // namespace gptrain::ops
