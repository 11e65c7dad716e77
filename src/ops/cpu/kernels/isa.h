// Rules for kernel sources, which are compiled once for each instruction set (in the namespace GPTRAIN_ISA).
//
// The linker keeps one copy of an inline function, from any object. If a kernel source compiled for AVX-512 left an
// out-of-line copy of, say, std::max in its object, the whole program might use that copy, and stop with an illegal
// instruction on a machine without AVX-512. So these sources
//   - keep all their helpers in an anonymous namespace inside their own;
//   - use no standard containers, algorithms or strings;
//   - call from other headers only functions that the compiler always inlines (drop_threshold).
// The test `kernel_symbols` looks for weak functions in the objects. The libraries are built with -O3 in every build
// type, without which nothing would be inlined.
//
// Loops are plain and marked `omp simd`: it promises that iterations are independent (an output may alias an input
// element by element), and lets sums be taken in lanes.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/matrix.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

inline float load(const float* from) { return *from; }
inline float load(const bf16* from) { return __builtin_bit_cast(float, static_cast<uint32_t>(from->bits) << 16); }

inline void store(float* to, float value) { *to = value; }

// to_bf16 of base/dtype.h without branches, which vectorises.
inline void store(bf16* to, float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const uint32_t quiet_nan = bits | 0x400000U;
  to->bits = static_cast<uint16_t>((value != value ? quiet_nan : rounded) >> 16);
}

inline float load(const f16* from) {
  const uint32_t sign = (from->bits & 0x8000U) << 16, magnitude = (from->bits & 0x7fffU) << 13;
  const uint32_t finite = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) * 0x1p112F);
  return __builtin_bit_cast(float, sign | (magnitude >= 0x7c00U << 13 ? 0x7f800000U | magnitude : finite));
}

// to_f16 of base/dtype.h without branches.
inline void store(f16* to, float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0.5F) - 0x3f000000U;
  uint32_t rounded = magnitude < 0x38800000U ? subnormal : normal;
  rounded = magnitude >= 0x477ff000U ? 0x7c00U : rounded;
  rounded = value != value ? 0x7e00U : rounded;
  to->bits = static_cast<uint16_t>(((bits >> 16) & 0x8000U) | rounded);
}

template <typename T>
inline T* row_of(const Matrix& matrix, int64_t row) {
  return static_cast<T*>(matrix.data) + row * matrix.stride;
}

// The gains of a norm: its weights, or 1 + its weights.
struct Gains {
  const float* weights;
  float offset;

  float operator[](int64_t i) const { return offset + weights[i]; }
};

inline Gains gains_of(const Matrix& weights, bool offset) {
  return {row_of<const float>(weights, 0), offset ? 1.0F : 0.0F};
}

// Calls body(T{}) with the C++ type of a dtype. REQUIRES: f32 or bf16.
template <typename Body>
inline void with_type(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(bf16{});
  } else {
    body(float{});
  }
}
// Does the same with f32, bf16 and f16, for the ops of has_f16_on_cpu.
template <typename Body>
inline void with_any_type(DType dtype, const Body& body) {
  if (dtype == DType::f16) return body(f16{});
  with_type(dtype, body);
}

}  // namespace
}  // namespace gptrain::ops::GPTRAIN_ISA
