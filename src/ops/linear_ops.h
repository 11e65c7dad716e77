// The three products of a linear. Notation: ops/ops.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"

namespace gptrain::inline ops {

// y = x w^T (+ bias). w is [out, in]. x, w, bias, y are C; y may also be f32 when C is not (logits). If pre_activation
// is given, pre_activation = x w^T (+ bias) and y = gelu_tanh(pre_activation), taken before or after rounding to C; y
// is then C.
struct LinearForward {
  static constexpr std::string_view name = "linear_forward";
  Matrix x;                    // [N, in]
  Matrix w;                    // [out, in]
  Matrix bias;                 // [1, out] or not given
  Matrix y;                    // [N, out] out
  int64_t true_out = -1;       // rows of w that are not padding, for model FLOPs only; -1: all
  Matrix pre_activation = {};  // [N, out] C out, or not given
};

// dx = dy w. If pre_activation is given, dx = (dy w) * gelu_tanh'(pre_activation), element by element; the product may
// have been rounded to C before.
struct LinearBackwardInput {
  static constexpr std::string_view name = "linear_backward_input";
  Matrix dy;                   // [N, out] C
  Matrix w;                    // [out, in] C
  Matrix dx;                   // [N, in] C out
  int64_t true_out = -1;       // rows of w that are not padding, for model FLOPs only; -1: all
  Matrix pre_activation = {};  // [N, in] C, or not given
};

// dw (+)= dy^T x; d_bias (+)= column sums of dy.
struct LinearBackwardWeight {
  static constexpr std::string_view name = "linear_backward_weight";
  Matrix x;       // [N, in] C
  Matrix dy;      // [N, out] C
  Matrix dw;      // [out, in] f32
  Matrix d_bias;  // [1, out] f32 or not given
  bool accumulate;
  int64_t true_out = -1;  // rows of w that are not padding, for model FLOPs only; -1: all
  // Rows before the projection if x and dy are projections, for model FLOPs only; -1: they are not.
  int64_t true_rows = -1;
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_LINEAR_OP(X) X(LinearForward) X(LinearBackwardInput) X(LinearBackwardWeight)
