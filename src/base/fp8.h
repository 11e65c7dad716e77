// The two 8-bit floating-point formats of matrix products (arXiv 2209.05433), and the scale with which a tensor is
// stored in one of them.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace gptrain::inline base {

// One stored number. E4M3 has no infinities and one NaN per sign; E5M2 follows the IEEE rules.
struct f8e4m3 {
  uint8_t bits;
  static constexpr DType dtype = DType::f8e4m3;
  static constexpr int mantissa_bits = 3;
  static constexpr int exponent_bias = 7;
  static constexpr uint8_t largest_code = 0x7e;  // 448 = 1.75 * 2^8
  static constexpr int largest_exponent = 8;
};
struct f8e5m2 {
  uint8_t bits;
  static constexpr DType dtype = DType::f8e5m2;
  static constexpr int mantissa_bits = 2;
  static constexpr int exponent_bias = 15;
  static constexpr uint8_t largest_code = 0x7b;  // 57344 = 1.75 * 2^15
  static constexpr int largest_exponent = 15;
};

template <typename T>
constexpr bool is_fp8_type = std::is_same_v<T, f8e4m3> || std::is_same_v<T, f8e5m2>;

constexpr bool is_fp8(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2; }

// Converts exactly.
template <typename T, std::enable_if_t<is_fp8_type<T>, int> = 0>
constexpr float to_float(T value) {
  const uint32_t sign = uint32_t{value.bits} >> 7 << 31;
  const uint32_t magnitude = value.bits & 0x7fU;
  if (magnitude > T::largest_code) {
    const bool infinite = std::is_same_v<T, f8e5m2> && magnitude == T::largest_code + 1;
    return std::bit_cast<float>(sign | (infinite ? 0x7f800000U : 0x7fc00000U));
  }
  if (magnitude >> T::mantissa_bits == 0) {
    // Subnormal: a multiple of 2^(1 - bias - mantissa bits).
    const float unit = std::bit_cast<float>(static_cast<uint32_t>(128 - T::exponent_bias - T::mantissa_bits) << 23);
    const float size = static_cast<float>(magnitude) * unit;
    return sign != 0 ? -size : size;
  }
  const uint32_t shifted = magnitude << (23 - T::mantissa_bits);
  return std::bit_cast<float>(sign | (shifted + (static_cast<uint32_t>(127 - T::exponent_bias) << 23)));
}

// Rounds to nearest, ties to even. Magnitudes above the format's largest number, infinities included, become that
// number. NaN of either sign becomes 0x7f, as a GPU converts (cvt.rn.satfinite).
template <typename T>
constexpr T to_fp8(float value) {
  static_assert(is_fp8_type<T>);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {0x7f};
  constexpr uint32_t least_normal = static_cast<uint32_t>(128 - T::exponent_bias) << 23;
  if (magnitude < least_normal) {
    // Adding a number whose last place is the unit of the subnormals makes f32 round to a multiple of that unit.
    constexpr uint32_t rounder = static_cast<uint32_t>(128 - T::exponent_bias - T::mantissa_bits + 23) << 23;
    const float sum = std::bit_cast<float>(magnitude) + std::bit_cast<float>(rounder);
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(sum) - rounder))};
  }
  constexpr int dropped = 23 - T::mantissa_bits;
  const uint32_t rounded = (magnitude + ((1U << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1U)) >> dropped;
  const uint32_t code = rounded - (static_cast<uint32_t>(127 - T::exponent_bias) << T::mantissa_bits);
  return {static_cast<uint8_t>(sign | (code < T::largest_code ? code : T::largest_code))};
}

// Returns the factor by which a tensor with largest magnitude `largest` is multiplied when stored as T: the greatest
// power of two, at most 2^126, that keeps every element within the format's range. 1 if all elements are zero, NaN if
// any is not finite.
//
// A power of two leaves mantissas unchanged, so an element is rounded once, by the format, and equally under every
// scale that keeps it above the subnormals. Rounding the scale to a power of two loses at most one of the format's 16
// (E4M3) or 31 (E5M2) binades.
template <typename T>
constexpr float fp8_scale(float largest) {
  const uint32_t bits = std::bit_cast<uint32_t>(largest) & 0x7fffffffU;
  if (bits == 0) return 1;
  if (bits >= 0x7f800000U) return std::bit_cast<float>(0x7fc00000U);
  constexpr uint32_t largest_mantissa = 0x600000;  // 1.75, the mantissa of both formats' largest numbers
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const int log_scale = T::largest_exponent - exponent - ((bits & 0x7fffffU) > largest_mantissa ? 1 : 0);
  return std::bit_cast<float>(static_cast<uint32_t>((log_scale < 126 ? log_scale : 126) + 127) << 23);
}

// Returns value * scale, or NaN if the value is not finite: an infinity would become a format's largest number.
constexpr float scaled_for_fp8(float value, float scale) { return value * scale + value * 0.0F; }

}  // namespace gptrain::base
