// Tensor cores: the PTX instruction mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32 (sm_80 and later), and on the host
// the same product with the same layout of fragments. T is bf16 or f16.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/values.h"
#include "simt.h"

namespace gptrain::inline cuda {

// Returns two numbers rounded to T, the first in the lower half.
template <typename T>
__device__ inline uint32_t rounded_pair(float first, float second) {
#ifdef __CUDACC__
  uint32_t pair;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return rounded_to<T>(first).bits | uint32_t{rounded_to<T>(second).bits} << 16;
#endif
}

// c [16, 8] += a [16, 16] b [16, 8], by all lanes of a warp together. With g = lane / 4 and t = lane % 4, a lane holds
//   a[0]: row g, columns 2t, 2t + 1     a[1]: row g + 8, the same columns     a[2], a[3]: 8 columns further
//   b0: rows 2t, 2t + 1 of column g     b1: 8 rows further
//   c0, c1: row g, columns 2t, 2t + 1   c2, c3: row g + 8
// with pairs of T in a and b, the first in the lower half.
template <typename T>
__device__ inline void mma_16x8x16(float& c0, float& c1, float& c2, float& c3, const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
#ifdef __CUDACC__
  // Volatile: the compiler must not move it to where some lanes are absent.
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  const auto both = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
  const auto a_front = simt::exchange(0xffffffff, both(a[0], a[1]), simt::Site::current());
  const auto a_back = simt::exchange(0xffffffff, both(a[2], a[3]), simt::Site::current());
  const auto b_all = simt::exchange(0xffffffff, both(b0, b1), simt::Site::current());
  // Returns one of the four numbers in a lane's 64 bits, given the word and its half.
  const auto part = [](uint64_t words, unsigned word, unsigned half) {
    return to_float(T{static_cast<uint16_t>(words >> (32 * word + 16 * half))});
  };
  const unsigned g = simt::lane() / 4, t = simt::lane() % 4;
  for (unsigned k = 0; k < 16; ++k) {
    const unsigned pair = k % 8 / 2, half = k % 2;
    const uint64_t a_words = (k < 8 ? a_front : a_back)[4 * g + pair];
    const float left[2] = {part(a_words, 0, half), part(a_words, 1, half)};
    const float right[2] = {part(b_all[4 * (2 * t) + pair], k / 8, half),
                            part(b_all[4 * (2 * t + 1) + pair], k / 8, half)};
    c0 += left[0] * right[0];
    c1 += left[0] * right[1];
    c2 += left[1] * right[0];
    c3 += left[1] * right[1];
  }
#endif
}

}  // namespace gptrain::cuda
