// The functions of activations and their derivatives, for kernels of whole rows.
#pragma once

#include "base/kinds.h"
#include "ops/cpu/kernels/math.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// Every function here is x factor(x); its slope is its derivative.
struct FactorAndSlope {
  float factor;
  float slope;
};

// x sigmoid(x).
struct Silu {
  static float factor(float x) { return sigmoid(x); }
  static FactorAndSlope factor_and_slope(float x) {
    const SigmoidAndSlope s = sigmoid_and_slope(x);
    return {s.value, s.value + x * s.slope};
  }
};

// x Phi(x), with derivative Phi(x) + x times the normal density.
struct Gelu {
  static constexpr ActivationKind kind = ActivationKind::gelu;
  static float factor(float x) { return normal_distribution(x).distribution; }
  static FactorAndSlope factor_and_slope(float x) {
    constexpr float inverse_sqrt_2pi = 0.398942280F;
    const Normal normal = normal_distribution(x);
    return {normal.distribution, normal.distribution + x * normal.exponential * inverse_sqrt_2pi};
  }
};

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), with 2 u = c (x + 0.044715 x^3).
struct GeluTanh {
  static constexpr ActivationKind kind = ActivationKind::gelu_tanh;
  static constexpr float c = 1.59576912F;  // 2 sqrt(2 / pi)
  static constexpr float cubic = 0.044715F;
  static float factor(float x) { return sigmoid(c * (x + cubic * x * x * x)); }
  static FactorAndSlope factor_and_slope(float x) {
    const SigmoidAndSlope s = sigmoid_and_slope(c * (x + cubic * x * x * x));
    return {s.value, s.value + x * s.slope * (c + 3.0F * c * cubic * x * x)};
  }
};

}  // namespace
}  // namespace gptrain::ops::GPTRAIN_ISA
