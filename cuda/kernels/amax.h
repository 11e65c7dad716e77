// The amax of a bf16 matrix (see ops/ops.h), computed by the kernel that stores the matrix.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/values.h"
#include "ops/ops.h"
#include "simt.h"

namespace gptrain::inline cuda {

struct WarpMaxima {
  uint32_t of_warp[32];
};

// Returns the maximum over the block to every thread. REQUIRES: all threads call it; the block has whole warps.
__device__ inline uint32_t block_maximum(uint32_t value, WarpMaxima& maxima) {
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffff, value, lanes);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) maxima.of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp)
    value = maxima.of_warp[warp] > value ? maxima.of_warp[warp] : value;
  return value;
}

// The maximum of all elements that a thread stores. Does nothing without `parts` or for another type than bf16.
class RunningAmax {
 public:
  __device__ explicit RunningAmax(float* parts) : parts_(parts) {}

  template <typename T, int N>
  __device__ void see(const Pack<T, N>& stored) {
    if constexpr (std::is_same_v<T, bf16>) {
      if (parts_ == nullptr) return;
      // Magnitudes of bf16 are ordered as their bits, with infinity and NaN above all others.
      for (const bf16 element : stored.at) {
        const uint32_t magnitude = element.bits & 0x7fffU;
        largest_ = magnitude > largest_ ? magnitude : largest_;
      }
    }
  }

  // Writes the block's maximum; unused parts become 0. REQUIRES: all threads of the block call it, last, when shared
  // memory (WarpMaxima) is free.
  __device__ void leave() const {
    if (parts_ == nullptr) return;
    const float own = block_amax(shared<WarpMaxima>());
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t part = blockIdx.x + static_cast<int64_t>(gridDim.x) * threadIdx.x; part < amax_parts; part += step)
      parts_[part] = part == blockIdx.x ? own : 0.0F;
  }

  // Raises the number at `parts`, at least -infinity, to the block's maximum. REQUIRES: all threads of the block call
  // it.
  __device__ void raise(WarpMaxima& maxima) const {
    if (parts_ == nullptr) return;
    const float own = block_amax(maxima);
    // As signed integers, the bits of non-negative floats are in their order, and those of -infinity below all.
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<int*>(parts_), std::bit_cast<int>(own));
  }

 private:
  // Returns the amax of the elements that the block has seen; infinity if any is not finite.
  __device__ float block_amax(WarpMaxima& maxima) const {
    constexpr uint32_t infinity = 0x7f80;
    const uint32_t largest = block_maximum(largest_, maxima);
    return to_float(bf16{static_cast<uint16_t>(largest < infinity ? largest : infinity)});
  }

  float* parts_;
  uint32_t largest_ = 0;
};

}  // namespace gptrain::cuda
