// Division by a number that is known before the kernel starts, as a product and a shift: a device has no instruction
// that divides whole numbers, and takes some twenty for 32 bits, and a hundred for 64.
//
// Granlund and Montgomery, "Division by invariant integers using multiplication" (PLDI 1994), theorem 4.2: with
// l = ceil(log2 d) and m = ceil(2^(31 + l) / d), floor(m n / 2^(31 + l)) = floor(n / d) for all 0 <= n < 2^31.
#pragma once

#include <bit>
#include <cstdint>

#include "simt.h"

namespace gptrain {

class Divisor {
 public:
  // value >= 1; by a 0 nothing may be divided.
  explicit Divisor(int64_t value) : value_(value) {
    if (value < 1 || value > largest_fast) return;
    const int bits = std::bit_width(static_cast<uint64_t>(value - 1));
    shift_ = 31 + bits;
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + static_cast<uint64_t>(value) - 1) /
                                        static_cast<uint64_t>(value));
  }

  // floor(n / value) of n >= 0. Numbers from 2^31 on are divided.
  __host__ __device__ int64_t quotient(int64_t n) const {
    if (n > largest_fast || multiplier_ == 0) return n / value_;
    const uint64_t product = static_cast<uint64_t>(static_cast<uint32_t>(n)) * multiplier_;
    return static_cast<int64_t>(product >> shift_);
  }
  __host__ __device__ int64_t remainder(int64_t n) const { return n - quotient(n) * value_; }

 private:
  static constexpr int64_t largest_fast = 0x7FFFFFFF;

  int64_t value_;
  uint32_t multiplier_ = 0;  // 0: the divisor is too large
  int shift_ = 0;
};

}  // namespace gptrain
