// Activations in the epilogue of a matrix product by a GPU's library (cuBLASLt), and their replacement if the library
// has none: the product alone and a second op, in the same memory.
//
// A fused activation (LinearForward::pre_activation) changes a step's buffers. So fused_activation decides from kind,
// dtype and width alone, and a plan made without the library agrees with the run. Whether the library's epilogue or the
// replacement computes it changes no memory, and is chosen by timing with the product's algorithm.
#pragma once

#include <cstdint>

#include "ops/ops.h"
#include "ops/target.h"

namespace gptrain::inline ops {

// The epilogues require that rows of the pre-activation begin at multiples of this many elements and have such a
// length.
constexpr int64_t fused_activation_multiple = 8;

// RETURNS whether the linear before an activation also computes the activation, and the linear after it, in backward,
// the activation's gradient. The library has only the tanh form of GELU, in 16 bits. The saved pre-activation then
// includes the bias.
inline bool fused_activation(ActivationKind kind, DType compute, int64_t width, const Target& target) {
  return target.kind == Target::Kind::gpu && kind == ActivationKind::gelu_tanh && dtype_bytes(compute) == 2 &&
         width % fused_activation_multiple == 0;
}

// RETURNS the op without its epilogue: without activation, or without the bias' gradient.
inline LinearForward product_alone(const LinearForward& op) {
  LinearForward product = op;
  if (op.pre_activation.given()) product.y = op.pre_activation;
  product.pre_activation = {};
  return product;
}
inline LinearBackwardInput product_alone(const LinearBackwardInput& op) {
  LinearBackwardInput product = op;
  product.pre_activation = {};
  return product;
}
inline LinearBackwardWeight product_alone(const LinearBackwardWeight& op) {
  LinearBackwardWeight product = op;
  product.d_bias = {};
  return product;
}

// RETURNS the op to run after product_alone. REQUIRES: `op` has a pre-activation.
inline ActivationForward activation_of(const LinearForward& op) {
  return {.kind = ActivationKind::gelu_tanh, .x = op.pre_activation, .bias = {}, .y = op.y};
}
inline ActivationBackward activation_of(const LinearBackwardInput& op) {
  return {.kind = ActivationKind::gelu_tanh, .x = op.pre_activation, .bias = {}, .dy = op.dx, .dx = op.dx};
}

}  // namespace gptrain::ops
