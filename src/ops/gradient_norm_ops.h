// The norm of all gradients, and the preparation of updates that depends on it.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// partials[i] = sum of squares of the gradients in the segments with `partial` i, in f64, in order; 0 if there is none.
struct SquaredNorm {
  static constexpr std::string_view name = "squared_norm";
  struct Segment {
    int64_t offset;  // elements from the start of the buffer
    int64_t count;
    int64_t partial;
  };
  const Segment* segments;  // device memory
  int64_t num_segments;
  Matrix gradients;  // [1, elements] f32 or bf16
  Matrix partials;   // [1, n] f64 out
};

// Finishes the gradient norm and decides whether the step is skipped, for every optimizer: squared_norm = sum of
// partials in order / loss scale^2; skip = loss_sum or squared_norm is not finite; gradient_scale = min(1, clip_norm /
// norm) (1 if clip_norm = 0) / loss scale; if not skipped: updates += 1. The loss scale is this step's, which remains
// in step_loss_scale; with a window, state->loss_scale becomes the next step's (see next_loss_scale). With `scores`,
// largest_score is the largest of them, and clipped_heads the number above the threshold, or 0 if skipped.
struct PrepareUpdate {
  static constexpr std::string_view name = "prepare_update";
  Matrix partials;  // [1, n] f64
  double clip_norm;
  StepState* state;
  int64_t loss_scale_window = 0;  // 0: no loss scaling
  Matrix scores = {};             // [1, n] f32: largest attention score of each head, or not given
  double score_threshold = 0;     // given with scores
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_GRADIENT_NORM_OP(X) X(SquaredNorm) X(PrepareUpdate)
