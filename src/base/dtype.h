// Element types of tensors, token files and checkpoints.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace gptrain {

enum class DType : uint8_t { f32, bf16, f64, i32, i64, u16, u8, f8e4m3, f8e5m2 };

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
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

}  // namespace gptrain
