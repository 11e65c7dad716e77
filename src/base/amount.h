// Counts of bytes, elements and operations whose sums and products may exceed 64 bits.
#pragma once

#include <cstdint>
#include <limits>

namespace gptrain::inline base {

// A whole number >= 0 that saturates at 2^63 - 1 instead of overflowing. Once saturated it stays so, whatever is added
// or multiplied.
class Amount {
 public:
  constexpr Amount() = default;
  constexpr Amount(int64_t value) : value_(value < 0 ? 0 : value) {}  // NOLINT: numbers are amounts

  static constexpr int64_t most = std::numeric_limits<int64_t>::max();

  constexpr int64_t value() const { return value_; }
  constexpr bool too_large() const { return value_ == most; }

  friend constexpr Amount operator+(Amount a, Amount b) {
    int64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? Amount(most) : Amount(sum);
  }
  friend constexpr Amount operator*(Amount a, Amount b) {
    int64_t product = 0;
    return __builtin_mul_overflow(a.value_, b.value_, &product) ? Amount(most) : Amount(product);
  }
  constexpr Amount& operator+=(Amount other) { return *this = *this + other; }
  friend constexpr auto operator<=>(Amount a, Amount b) = default;

 private:
  int64_t value_ = 0;
};

}  // namespace gptrain::base
