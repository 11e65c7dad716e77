// Activations of an FFN. Notation: ops/ops.h.
#pragma once

#include <string_view>

#include "base/kinds.h"
#include "base/matrix.h"

namespace gptrain::inline ops {

// y = act(x + bias). gelu: y [N, f] from x [N, f]; gated: y = f(gate) * up with x = [gate | up], [N, 2 f], where f is
// SiLU (swiglu) or GELU (geglu, geglu_tanh). x stays without the bias. With code_bits 2, 3 or 4 (REQUIRES not gated),
// the codes of act'(x + bias) are written, too (few_bits.h).
struct ActivationForward {
  static constexpr std::string_view name = "activation_forward";
  ActivationKind kind;
  Matrix x;          // [N, f] or [N, 2 f] C
  Matrix bias;       // [1, cols of x] C or not given
  Matrix y;          // [N, f] C out
  Matrix amax = {};  // amax of y (fp8_ops.h), or not given
  int code_bits = 0;
  Matrix codes = {};  // [N, code_bytes(f, code_bits)] u8, out
};

// dx = act'(x + bias) dy. dx may alias dy if they are equally wide, but not x. (LinearBackwardWeight computes the bias'
// gradient, the column sum of dx.) With code_bits, act' is decoded from `codes`, and x and bias are not given.
struct ActivationBackward {
  static constexpr std::string_view name = "activation_backward";
  ActivationKind kind;
  Matrix x, bias;
  Matrix dy;         // [N, f] C
  Matrix dx;         // like x, out
  Matrix amax = {};  // amax of dx (fp8_ops.h), or not given
  int code_bits = 0;
  Matrix codes = {};  // as forward wrote them
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_ACTIVATION_OP(X) X(ActivationForward) X(ActivationBackward)
