// Activations of an FFN. Notation: ops/ops.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/kinds.h"
#include "base/matrix.h"
#include "ops/fp8_ops.h"

namespace gptrain::inline ops {

// y = act(x + bias). gelu: y [N, f] from x [N, f]; gated: y = f(gate) * up with x = [gate | up], [N, 2 f], where f is
// SiLU (swiglu) or GELU (geglu, geglu_tanh). x stays without the bias. With code_bits 2, 3 or 4 (REQUIRES not gated),
// the codes of act'(x + bias) are written, too (few_bits.h).
// With `fp8` (REQUIRES bf16, no codes), y is rounded to bf16 as ever, and its FP8 copies are written in its place.
struct ActivationForward {
  static constexpr std::string_view name = "activation_forward";
  ActivationKind kind;
  Matrix x;          // [N, f] or [N, 2 f] C
  Matrix bias;       // [1, cols of x] C or not given
  Matrix y;          // [N, f] C out, or not given
  Matrix amax = {};  // amax of y (fp8_ops.h), or not given
  int code_bits = 0;
  Matrix codes = {};   // [N, code_bytes(f, code_bits)] u8, out
  Fp8Copies fp8 = {};  // copies of y, given if y is not
};

// dx = act'(x + bias) dy. dx may alias dy if they are equally wide, but not x. (LinearBackwardWeight computes the bias'
// gradient, the column sum of dx.) With code_bits, act' is decoded from `codes`, and x and bias are not given.
// With `fp8`, copies of dx are written in its place, as in forward.
struct ActivationBackward {
  static constexpr std::string_view name = "activation_backward";
  ActivationKind kind;
  Matrix x, bias;
  Matrix dy;         // [N, f] C
  Matrix dx;         // like x, out, or not given
  Matrix amax = {};  // amax of dx (fp8_ops.h), or not given
  int code_bits = 0;
  Matrix codes = {};   // as forward wrote them
  Fp8Copies fp8 = {};  // copies of dx, given if dx is not
};

// RETURNS the columns of the activation's output, from those of its input x.
constexpr int64_t activated_cols(ActivationKind kind, int64_t cols) { return is_gated(kind) ? cols / 2 : cols; }

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_ACTIVATION_OP(X) X(ActivationForward) X(ActivationBackward)
