// Loss of the head. Notation: ops/ops.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// A softcap > 0 of the next two ops takes softcap * tanh(logit / softcap) in place of each logit (arXiv 2408.00118).
//
// Statistics of each row of a slice of the logits, columns [first_token, first_token + cols) of the vocabulary: the
// maximum m, the sum of e^(logit - m), and the target's logit (0 if the target is in another slice). A slice of padding
// only gives minus infinity, 0, 0.
struct CrossEntropyStatistics {
  static constexpr std::string_view name = "cross_entropy_statistics";
  int64_t vocab_size;  // V
  int64_t first_token;
  const int32_t* targets;  // [N]
  Matrix logits;           // [N, cols] f32 or C
  Matrix statistics;       // [3, N] f32 out
  double softcap = 0;
};

// losses[n] = lse(logits[n, :V]) - logits[n, targets[n]], 0 where targets[n] < 0 (not counted). d_logits, if given, is
// the gradient of (sum of losses + z_loss * sum of lse^2) * state->inverse_tokens * state->loss_scale.value, padded
// columns zero; it may alias logits if both are C. If `statistics` is given, the logits are a slice of the vocabulary
// that begins at first_token, and `statistics` holds the statistics of all slices in order.
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  int64_t vocab_size;  // V
  double z_loss;
  const int32_t* targets;  // [N]
  const StepState* state;
  Matrix logits;           // [N, Vp] f32 or C
  Matrix d_logits;         // [N, Vp] C out, or not given (evaluation)
  Matrix losses;           // [1, N] f32 out
  Matrix statistics = {};  // [3 slices, N] f32, or not given
  int64_t first_token = 0;
  double softcap = 0;
};

// state->loss_sum += sum of losses, in f64, in row order (on a GPU, in the order of a fixed tree).
struct AccumulateLoss {
  static constexpr std::string_view name = "accumulate_loss";
  Matrix losses;  // [1, N] f32
  StepState* state;
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_LOSS_OP(X) X(CrossEntropyStatistics) X(CrossEntropy) X(AccumulateLoss)
