// 8-bit codes for numbers in [-1, 1] or [0, 1]: the dynamic map of arXiv 2110.02861 (and 1511.04561). Each block of 256
// elements has one scale, its largest magnitude; an element is stored as a code and decoded as value(code) * scale.
//
// Magnitude n = 0 is 0. Seven decades from 10^-7 to 1 follow, each with twice as many magnitudes as the one below: the
// interval from a tenth of the decade's end to its end is cut into equal cells, whose midpoints are the magnitudes. The
// lowest decade has one magnitude with a sign and two without. The last magnitude is 1. Codes are in the order of their
// values:
//   with a sign: code 127 + n for values >= 0 (n <= 128), code 127 - n below zero (n <= 127), so -1 has no code;
//   without: code n (n <= 255).
// A number gets the code of the nearest value; a tie goes to the larger. Borders between values are rounded to 15 bits
// after the binary point, as EncodeTable needs.
#pragma once

#include <bit>
#include <cstdint>

namespace gptrain::inline base {

constexpr int64_t state_block = 256;  // elements that share one scale
constexpr int zero_code = 127;        // the code of 0 in the signed map

// The scale of a block whose largest magnitude is below this is 0, so that no product of a code and a scale is
// subnormal.
constexpr float least_block_scale = 0x1p-100F;

template <bool has_sign>
struct DynamicMap {
  static constexpr int most = has_sign ? 128 : 255;  // index of magnitude 1

  static constexpr float magnitude(int n) {
    if (n == 0) return 0;
    if (n == most) return 1;
    const int shifted = has_sign ? n : n + 1;  // lowest decade: 1 with a sign, 2 and 3 without
    const int log = static_cast<int>(std::bit_width(static_cast<unsigned>(shifted))) - 1;
    const double cells = 1 << log;
    double value = 0.1 + 0.9 * (shifted - cells + 0.5) / cells;
    for (int decade = has_sign ? log : log - 1; decade < 6; ++decade) value /= 10;
    return static_cast<float>(value);
  }

  // Returns the bits of the smallest number that is encoded as magnitude n > 0. Its lower 8 bits are zero.
  static constexpr uint32_t border_bits(int n) {
    const double middle = (static_cast<double>(magnitude(n - 1)) + static_cast<double>(magnitude(n))) / 2;
    return (std::bit_cast<uint32_t>(static_cast<float>(middle)) + 0x80U) & ~0xffU;
  }

  static constexpr float value(int code) {
    if (!has_sign) return magnitude(code);
    return code < zero_code ? -magnitude(zero_code - code) : magnitude(code - zero_code);
  }
};

template <bool has_sign>
struct DecodeTable {
  float values[256];
};

template <bool has_sign>
constexpr DecodeTable<has_sign> make_decode_table() {
  DecodeTable<has_sign> table{};
  for (int code = 0; code < 256; ++code) table.values[code] = DynamicMap<has_sign>::value(code);
  return table;
}

// Encodes with one table look-up: among the numbers with the same upper 16 bits there is at most one border. An entry
// holds the index of the magnitude below that border in its lower 8 bits and the border's bits in the others.
template <bool has_sign>
struct EncodeTable {
  static constexpr uint32_t first = 104U << 7;  // 2^-23, below every border
  static constexpr uint32_t last = 127U << 7;   // 1
  uint32_t entries[last - first + 1];
};

template <bool has_sign>
constexpr EncodeTable<has_sign> make_encode_table() {
  using Map = DynamicMap<has_sign>;
  EncodeTable<has_sign> table{};
  int n = 0;  // magnitude of the number with these upper 16 bits and zeros below
  for (uint32_t upper = table.first; upper <= table.last; ++upper) {
    while (n < Map::most && Map::border_bits(n + 1) <= upper << 16) ++n;
    const uint32_t border = n < Map::most ? Map::border_bits(n + 1) : 0x7fffff00U;
    table.entries[upper - table.first] = border | static_cast<uint32_t>(n);
  }
  return table;
}

// Returns the scale of a block whose largest magnitude is `largest`; 0, which zeroes the block, if that is NaN or
// infinite.
[[gnu::always_inline]] constexpr float block_scale(float largest) {
  return largest >= least_block_scale && largest < __builtin_inff() ? largest : 0.0F;
}
[[gnu::always_inline]] constexpr float inverse_of_scale(float scale) { return scale > 0 ? 1 / scale : 0.0F; }

// Returns the code of value * inverse, where `inverse` is inverse_of_scale of the block's scale. Without a sign, a
// value above zero never gets the code of zero (the reason is in ops/adamw_8bit.h).
template <bool has_sign>
[[gnu::always_inline]] inline uint8_t code_of(const EncodeTable<has_sign>& table, float value, float inverse) {
  constexpr auto first = static_cast<int32_t>(EncodeTable<has_sign>::first);
  constexpr auto last = static_cast<int32_t>(EncodeTable<has_sign>::last) - first;
  const auto bits = __builtin_bit_cast(int32_t, __builtin_fabsf(value) * inverse);
  int32_t at = (bits >> 16) - first;
  at = at < 0 ? 0 : at;
  at = at > last ? last : at;
  const auto entry = static_cast<int32_t>(table.entries[at]);
  int32_t n = (entry & 255) + (bits >= (entry & ~255) ? 1 : 0);
  if (!has_sign) return static_cast<uint8_t>(n + (n == 0 && value > 0 ? 1 : 0));
  const int32_t below = n < zero_code ? n : zero_code;
  return static_cast<uint8_t>(value < 0 ? zero_code - below : zero_code + n);
}

}  // namespace gptrain::base
