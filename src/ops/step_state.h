// The block of device memory that holds everything about a step that changes from one step to the next.
//
// Ops read it through a pointer, so that an op's arguments depend only on the action it belongs to, and a step that
// must be skipped is skipped by a predicate on the device, without the host looking.
#pragma once

#include <cstdint>

#include "base/loss_scale.h"

namespace gptrain {

struct StepState {
  // Written by the host before the step.
  float learning_rate = 0;
  float inverse_tokens = 0;  // 1 / counted_targets
  int64_t counted_targets = 0;  // of the global batch

  // Cleared by the host before the step, written by ops in it.
  double loss_sum = 0;        // sum of the cross-entropy of the counted tokens so far, natural log
  double squared_norm = 0;    // of all gradients, before clipping, the loss scale divided out
  float gradient_scale = 0;   // the update uses gradient * gradient_scale: clipped, the loss scale divided out
  int32_t skip = 0;           // 1: the loss or a gradient is not finite and nothing is updated
  float step_loss_scale = 1;  // the loss scale that the step's gradients have

  // Kept from step to step (saved in checkpoints).
  int64_t updates = 0;  // steps that were not skipped
  LossScale loss_scale;  // of the next loss gradients
};

}  // namespace gptrain
