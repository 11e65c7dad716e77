// Element types of tensors, token files and checkpoints.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace gptrain::inline base {

enum class DType : uint8_t { f32, bf16, f16, f64, i32, i64, u16, u8, f8e4m3, f8e5m2 };

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "f64";
    case DType::i64:
      return "i64";
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::u16:
      return "u16";
    case DType::u8:
      return "u8";
    case DType::f8e4m3:
      return "f8e4m3";
    case DType::f8e5m2:
      return "f8e5m2";
  }
  return "?";
}

// Storage of one bfloat16: the upper half of a float32. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
  uint16_t bits;
};

constexpr float to_float(bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }
constexpr float to_float(float value) { return value; }

constexpr bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

// Stochastic rounding: rounds away from zero with probability (the 16 bits that are cut off) / 2^16, so that the
// expected result is `value` itself. `random` is uniform over 32 bits; its upper 16 are used. A value that bf16
// represents exactly, infinities included, is unchanged; NaN stays NaN.
constexpr bf16 stochastic_bf16(float value, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<uint16_t>((is_nan ? bits | 0x400000U : bits + (random >> 16)) >> 16)};
}

// Storage of one IEEE 754 binary16: 5 bits of exponent, 10 of fraction, largest number 65504, smallest 2^-24.
// Conversion rounds to nearest, ties to even, to subnormals and infinities too; NaN stays NaN.
struct f16 {
  uint16_t bits;
};

constexpr float to_float(f16 value) {
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
  }
#endif
  const uint32_t sign = (value.bits & 0x8000U) << 16;
  const uint32_t magnitude = (value.bits & 0x7fffU) << 13;
  if (magnitude >= 0x7c00U << 13) return std::bit_cast<float>(sign | 0x7f800000U | magnitude);
  // A float's exponent has a bias that is 112 larger. Subnormals become normal in the product, which is exact.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F));
}

constexpr f16 to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  uint32_t rounded = 0;
  if (magnitude > 0x7f800000U) {
    rounded = 0x7e00U;
  } else if (magnitude >= 0x477ff000U) {  // 65520, half-way between 65504 and 65536
    rounded = 0x7c00U;
  } else if (magnitude < 0x38800000U) {  // 2^-14: adding 0.5 rounds to multiples of 2^-24
    rounded = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  } else {
    rounded = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return {static_cast<uint16_t>(sign | rounded)};
}

}  // namespace gptrain::base
