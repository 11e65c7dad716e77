// Activations and their derivatives, as kernels compute them.
#pragma once

#include <cmath>

#include "base/kinds.h"
#include "kernels/values.h"

namespace gptrain::inline cuda {

struct ValueAndSlope {
  float value, slope;
};

// A function x factor(x), and its derivative.
struct FactorAndSlope {
  float factor, slope;
};

// Returns 1 / x for x >= 1. On a device one instruction with an error of at most one unit in the last place; exact
// division takes ten.
__device__ inline float reciprocal(float x) {
#ifdef __CUDACC__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0F / x;
#endif
}

// Uses e^-|x|, which does not overflow and avoids computing the slope as a difference of nearly equal numbers.
__device__ inline ValueAndSlope sigmoid(float x) {
  const float e = exp2_of(-log2_e * fabsf(x));
  const float r = reciprocal(1.0F + e);
  return {x < 0 ? e * r : r, e * r * r};
}

struct NormalTail {
  float probability, bell;
};

// Returns Phi(-a) and e^(-a^2 / 2) for a >= 0. Their ratio is t P(t), t = 1 / (1 + 0.31 a), with the polynomial P of
// degree 9 of least relative error over all a, 6e-8. Small values keep their accuracy, without a branch.
__device__ inline NormalTail normal_tail(float a) {
  constexpr float coefficients[] = {-0.0176121784F, 0.0886339691F, -0.155023961F, 0.0882024067F, -0.0145632792F,
                                    0.0642488347F,  0.0869122951F, 0.111859536F,  0.123670292F,  0.123672114F};
  const float t = reciprocal(1.0F + 0.31F * a);
  float ratio = coefficients[0];
#pragma unroll
  for (int i = 1; i < 10; ++i) ratio = ratio * t + coefficients[i];
  const float bell = exp2_of(-0.5F * log2_e * a * a);
  return {ratio * t * bell, bell};
}

// x sigmoid(x).
struct Silu {
  __device__ static FactorAndSlope factor_and_slope(float x) {
    const ValueAndSlope s = sigmoid(x);
    return {s.value, s.value + x * s.slope};
  }
};

// x Phi(x); its derivative is Phi(x) plus x times the normal density.
struct Gelu {
  static constexpr ActivationKind kind = ActivationKind::gelu;
  __device__ static FactorAndSlope factor_and_slope(float x) {
    constexpr float inverse_sqrt_2pi = 0.398942280F;
    const NormalTail tail = normal_tail(fabsf(x));
    const float distribution = x < 0 ? tail.probability : 1.0F - tail.probability;
    return {distribution, distribution + x * tail.bell * inverse_sqrt_2pi};
  }
  __device__ static ValueAndSlope of(float x) {
    const FactorAndSlope gate = factor_and_slope(x);
    return {x * gate.factor, gate.slope};
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), with 2 u = c (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr ActivationKind kind = ActivationKind::gelu_tanh;
  __device__ static FactorAndSlope factor_and_slope(float x) {
    constexpr float c = 1.59576912F;  // 2 sqrt(2 / pi)
    constexpr float cubic = 0.044715F;
    const ValueAndSlope s = sigmoid(c * (x + cubic * x * x * x));
    return {s.value, s.value + x * s.slope * (c + 3.0F * c * cubic * x * x)};
  }
  __device__ static ValueAndSlope of(float x) {
    const FactorAndSlope gate = factor_and_slope(x);
    return {x * gate.factor, gate.slope};
  }
};

}  // namespace gptrain::cuda
