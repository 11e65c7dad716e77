// Elementary functions that vectorise. NaN in, NaN out.
#pragma once

#include "ops/cpu/kernels/isa.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

constexpr float infinity = __builtin_inff();

// e^x, relative error below 2e-7; results below 2.5e-38 are 0.
inline float exp_f32(float x) {
  constexpr float log2_e = 1.44269504F;
  constexpr float ln2_high = 0.693359375F;  // few bits, so that n * ln2_high is exact
  constexpr float ln2_low = -2.12194440e-4F;
  constexpr float smallest = -86.6F;
  constexpr float largest = 88.7228F;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits.
  constexpr float magic = 12582912.0F;
  const float shifted = x * log2_e + magic;
  const float n = shifted - magic;
  const float r = (x - n * ln2_high) - n * ln2_low;
  // (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2, interpolated at Chebyshev nodes.
  float p = 1.392692661e-3F;
  p = p * r + 8.363773874e-3F;
  p = p * r + 4.166655011e-2F;
  p = p * r + 1.666657338e-1F;
  p = p * r + 0.5F;
  const float e_r = (p * r) * r + r + 1.0F;
  // Scales by 2^(n - 1) and 2, because 2^128 is no float.
  const uint32_t exponent = __builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, magic) + 126U;
  const float result = e_r * __builtin_bit_cast(float, exponent << 23) * 2.0F;
  const float bounded = x > largest ? infinity : result;
  return x < smallest ? 0.0F : bounded;
}

// 1 / (1 + e^-x).
inline float sigmoid(float x) { return 1.0F / (1.0F + exp_f32(-x)); }

struct SigmoidAndSlope {
  float value;
  float slope;  // value (1 - value), computed without that form's cancellation in the upper tail
};

inline SigmoidAndSlope sigmoid_and_slope(float x) {
  const float e = exp_f32(x < 0.0F ? x : -x);
  const float upper = 1.0F / (1.0F + e);
  const float lower = e * upper;
  return {x < 0.0F ? lower : upper, upper * lower};
}

// tanh(x), relative error below 2e-7. Near 0, (tanh(x) / x - 1) / x^2 is interpolated at Chebyshev nodes of x^2.
inline float tanh_f32(float x) {
  constexpr float end_of_interpolation = 0.625F;
  const float magnitude = x < 0.0F ? -x : x;
  const float e = exp_f32(-2.0F * magnitude);
  const float far = (1.0F - e) / (1.0F + e);
  const float square = x * x;
  float p = -6.096714166e-3F;
  p = p * square + 2.099717900e-2F;
  p = p * square - 5.385090958e-2F;
  p = p * square + 1.333276974e-1F;
  p = p * square - 3.333332894e-1F;
  const float near = x + x * square * p;
  const float signed_far = x < 0.0F ? -far : far;
  return magnitude < end_of_interpolation ? near : signed_far;
}

// 1 - tanh(x)^2, computed without that form's cancellation.
inline float tanh_slope(float x) { return 4.0F * sigmoid_and_slope(2.0F * x).slope; }

// The standard normal distribution, and e^(-x^2 / 2), to which its density is proportional.
struct Normal {
  float distribution;
  float exponential;
};

// With z = |x| / sqrt 2 and t = 1 / (1 + 0.3 z): erfc(z) = e^(-z^2) t P(t). P interpolates e^(z^2) erfc(z) / t at
// Chebyshev nodes for z <= 10 (relative error 3e-8), beyond which e^(-z^2) is 0. The lower tail has full relative
// accuracy.
inline Normal normal_distribution(float x) {
  constexpr float sqrt_half = 0.707106781F;
  const float magnitude = x < 0.0F ? -x : x;
  const float t = 1.0F / (1.0F + (0.3F * sqrt_half) * magnitude);
  const float exponential = exp_f32(-0.5F * x * x);
  float p = -1.307708773e-1F;
  p = p * t + 4.919342706e-1F;
  p = p * t - 5.261516630e-1F;
  p = p * t + 5.645142424e-1F;
  p = p * t - 1.069833627e-1F;
  p = p * t + 2.205391692e-1F;
  p = p * t + 1.467960222e-1F;
  p = p * t + 1.709491200e-1F;
  p = p * t + 1.691730577e-1F;
  const float tail = 0.5F * exponential * t * p;
  return {x < 0.0F ? tail : 1.0F - tail, exponential};
}

}  // namespace
}  // namespace gptrain::ops::GPTRAIN_ISA
