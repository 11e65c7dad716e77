// Loads and stores of kernels: elements are computed with in f32 and accessed 16 bytes at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "simt.h"

namespace gptrain::inline cuda {

// On a device one instruction, with to_bf16's bits except for a NaN's payload.
__device__ inline bf16 rounded_to_bf16(float value) {
#ifdef __CUDACC__
  bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
  return rounded;
#else
  return to_bf16(value);
#endif
}

template <typename T>
__device__ T rounded_to(float value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return rounded_to_bf16(value);
  } else if constexpr (std::is_same_v<T, f16>) {
#ifdef __CUDA_ARCH__
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
#else
    return to_f16(value);
#endif
  } else {
    return value;
  }
}

// Returns 2^x. On a device one instruction, with an error of at most two units in the last place.
__device__ inline float exp2_of(float x) {
#ifdef __CUDACC__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return std::exp2(x);
#endif
}
constexpr float log2_e = 1.44269504F;

// Returns words[place] of four by selections: an index unknown at compile time would place them in local memory.
template <typename Words>
__device__ uint32_t word_of(const Words& words, int64_t index) {
  const uint32_t of_first = index % 2 == 0 ? words[0] : words[1];
  const uint32_t of_last = index % 2 == 0 ? words[2] : words[3];
  return index < 2 ? of_first : of_last;
}

// N neighbours at an address that is a multiple of their size, up to 16 bytes.
template <typename T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T at[N];
};

template <int N, typename T>
__device__ Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, typename T>
__device__ void store(T* to, const Pack<T, N>& values) {
  *reinterpret_cast<Pack<T, N>*>(to) = values;
}

}  // namespace gptrain::cuda
