// What a GPU's library (cuBLASLt) may do in a matrix product's epilogue beside adding the bias, and what takes its
// place where the library does not: the product alone, and an op after it, within the same memory.
//
// Whether the model asks for the activation of a product (LinearForward::pre_activation) changes which buffers a step
// has, so it is decided from kind, dtype and width alone and a plan made without the library agrees with the run. How a
// product that was asked for is served changes no memory: that is part of the choice of its algorithm, by timing.
#pragma once

#include <cstdint>

#include "ops/ops.h"
#include "ops/target.h"

namespace gptrain {

// Rows of the pre-activation begin at multiples of this many elements, and have as many: what the epilogues ask for.
constexpr int64_t fused_activation_multiple = 8;

// Whether the linear before an activation gives it too, and the linear behind it, backward, its gradient. The library
// has the tanh form of GELU only, and that in 16 bits. The pre-activation is then kept with the bias.
inline bool fused_activation(ActivationKind kind, DType compute, int64_t width, const Target& target) {
  return target.kind == Target::Kind::gpu && kind == ActivationKind::gelu_tanh && dtype_bytes(compute) == 2 &&
         width % fused_activation_multiple == 0;
}

// The product alone; of a weight's gradient, without the bias'.
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

// What is left to do when the product alone has run, for an op with a pre-activation.
inline ActivationForward activation_of(const LinearForward& op) {
  return {.kind = ActivationKind::gelu_tanh, .x = op.pre_activation, .bias = {}, .y = op.y};
}
inline ActivationBackward activation_of(const LinearBackwardInput& op) {
  return {.kind = ActivationKind::gelu_tanh, .x = op.pre_activation, .bias = {}, .dy = op.dx, .dx = op.dx};
}

}  // namespace gptrain
