// Normal random numbers (Box and Muller) with the same bits on every instruction set and GPU: initial weights, and
// random projections.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "base/philox.h"
#include "ops/fused.h"

namespace gptrain::inline ops {

// to = deviation * n, where n are normal numbers of variance 1. Element (row, column) has index i = first + row *
// row_step + column, in 64 bits: normal number i % 4 of the four that philox(key, {low(i / 4), high(i / 4), 0, 0})
// gives, words 2 j and 2 j + 1 two of them (normal_pair).
struct NormalValues {
  static constexpr std::string_view name = "normal_values";
  PhiloxKey key;
  float deviation;
  int64_t first;
  int64_t row_step;  // from an element to that below
  Matrix to;         // [rows, cols] f32 or bf16, out
};

struct NormalPair {
  float first, second;
};

// RETURNS -2 ln(u) for u = numerator 2^-24, 1 <= numerator <= 2^24, within 2^-23 relative.
GPTRAIN_FORMULA float twice_negative_log(uint32_t numerator) {
  // u = 2^exponent (1 + t) with 1 + t between sqrt(1/2) and sqrt(2): ln(u) = exponent ln(2) + t - t^2 / 2 + t^3 p(t),
  // with the polynomial p of logf in Moshier's Cephes.
  const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(numerator));
  const uint32_t mantissa = bits & 0x7fffffU;
  const uint32_t is_large = mantissa > 0x3504f3U ? 1 : 0;
  const auto exponent = static_cast<float>(static_cast<int32_t>((bits >> 23) + is_large) - 127 - 24);
  const float t = __builtin_bit_cast(float, mantissa | ((127U - is_large) << 23)) - 1.0F;
  float p = 7.0376836292e-2F;
  p = fused(p, t, -1.1514610310e-1F);
  p = fused(p, t, 1.1676998740e-1F);
  p = fused(p, t, -1.2420140846e-1F);
  p = fused(p, t, 1.4249322787e-1F);
  p = fused(p, t, -1.6668057665e-1F);
  p = fused(p, t, 2.0000714765e-1F);
  p = fused(p, t, -2.4999993993e-1F);
  p = fused(p, t, 3.3333331174e-1F);
  // ln(2) in two parts: the first has few digits, so that its product is exact.
  constexpr float ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
  const float square = t * t;
  float rest = p * t * square;
  rest = fused(exponent, ln2_low, rest);
  rest = fused(-0.5F, square, rest);
  return -2.0F * fused(exponent, ln2_high, t + rest);
}

// RETURNS two independent normal numbers of variance 1: sqrt(-2 ln(u)) times cosine and sine of 2 pi v, where u =
// uniform_open_closed(of_radius) and v = (of_angle >> 8) 2^-24. Each is within 2^-21 of the exact number.
GPTRAIN_FORMULA NormalPair normal_pair(uint32_t of_radius, uint32_t of_angle) {
  const float squared_radius = twice_negative_log((of_radius >> 8) + 1);
#if defined(__CUDA_ARCH__)
  const float radius = __fsqrt_rn(squared_radius);
#else
  const float radius = __builtin_sqrtf(squared_radius);
#endif
  // The angle is `turns` quarters of a turn and a rest of at most an eighth, for which the polynomials are those of
  // sinf and cosf in Cephes.
  const uint32_t v = of_angle >> 8;
  const uint32_t turns = (v + (1U << 21)) >> 22;
  const float rest = 3.7450702829e-7F * static_cast<float>(static_cast<int32_t>(v - (turns << 22)));  // pi / 2^23
  const float square = rest * rest;
  float s = fused(-1.9515295891e-4F, square, 8.3321608736e-3F);
  s = fused(s, square, -1.6666654611e-1F);
  const float sine = fused(s * square, rest, rest);
  float c = fused(2.443315711809948e-5F, square, -1.388731625493765e-3F);
  c = fused(c, square, 4.166664568298827e-2F);
  const float cosine = fused(c * square, square, fused(-0.5F, square, 1.0F));
  const bool odd = (turns & 1U) != 0;
  const float along = radius * (odd ? sine : cosine), across = radius * (odd ? cosine : sine);
  return {(turns + 1) & 2U ? -along : along, turns & 2U ? -across : across};
}

}  // namespace gptrain::ops
