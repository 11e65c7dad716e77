// Division by a number known before the kernel starts, as a product and a shift. A device has no instruction for
// integer division; it takes about twenty for 32 bits and a hundred for 64.
//
// Granlund and Montgomery, "Division by invariant integers using multiplication" (PLDI 1994), theorem 4.2: with
// l = ceil(log2 d) and m = ceil(2^(31 + l) / d), floor(m n / 2^(31 + l)) = floor(n / d) for all 0 <= n < 2^31.
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>

#include "simt.h"

namespace gptrain::inline cuda {

class Divisor {
 public:
  // REQUIRES: 0 <= value < 2^31, else throws std::logic_error. A Divisor of 0 must not divide.
  explicit Divisor(int64_t value) : value_(static_cast<uint32_t>(value)) {
    if (value < 0 || value > INT32_MAX)
      throw std::logic_error("a kernel divides by a number that has more than 31 bits");
    if (value == 0) return;
    shift_ = 31 + static_cast<int>(std::bit_width(value_ - 1));
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + value_ - 1) / value_);
  }

  struct Parts {
    uint32_t quotient, remainder;
  };
  // REQUIRES: n < 2^31.
  __host__ __device__ Parts divide(uint32_t n) const {
    const auto quotient = static_cast<uint32_t>(static_cast<uint64_t>(n) * multiplier_ >> shift_);
    return {quotient, n - quotient * value_};
  }

 private:
  uint32_t value_, multiplier_ = 0;
  int shift_ = 0;
};

}  // namespace gptrain::cuda
