#include "data/permutation.h"

#include <array>
#include <bit>

namespace gptrain::inline data {
namespace {

// Four rounds look random if the halves are wide; small domains need more.
constexpr uint32_t num_rounds = 8;

constexpr uint32_t low_ones(int bits) { return static_cast<uint32_t>((uint64_t{1} << bits) - 1); }

}  // namespace

Permutation::Permutation(PhiloxKey key, uint64_t tweak, uint64_t size) : key_(key), tweak_(tweak), size_(size) {
  const auto bits = static_cast<int>(std::bit_width(size - 1));
  low_bits_ = bits / 2;
  low_mask_ = low_ones(low_bits_);
  high_mask_ = low_ones(bits - low_bits_);
}

uint64_t Permutation::operator()(uint64_t index) const {
  do {
    index = feistel(index);
  } while (index >= size_);
  return index;
}

uint64_t Permutation::feistel(uint64_t value) const {
  auto high = static_cast<uint32_t>(value >> low_bits_);
  auto low = static_cast<uint32_t>(value) & low_mask_;
  // The halves may differ in width by a bit, so they are changed in turn instead of swapped.
  for (uint32_t round = 0; round < num_rounds; ++round) {
    const bool change_high = round % 2 == 0;
    const uint32_t word = philox(
        key_, {change_high ? low : high, round, static_cast<uint32_t>(tweak_), static_cast<uint32_t>(tweak_ >> 32)})[0];
    if (change_high) {
      high ^= word & high_mask_;
    } else {
      low ^= word & low_mask_;
    }
  }
  return uint64_t{high} << low_bits_ | low;
}

}  // namespace gptrain::data
