// Lossy 8-bit codes for a matrix that only backward reads. In each row, every block of code_block columns has its own
// scale, so that a large element costs the precision of its block only, and no row's codes depend on other rows.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/matrix.h"

namespace gptrain::inline ops {

constexpr int64_t code_block = 128;

// RETURNS the number of blocks, and of scales, in a row.
constexpr int64_t code_blocks(int64_t cols) { return (cols + code_block - 1) / code_block; }

struct BlockScale {
  float scale;    // factor from code to element
  float inverse;  // factor from element to code
};

// RETURNS the scale of a block whose largest magnitude has these f32 bits. Magnitudes compare like their bits; infinity
// and NaN are the largest.
constexpr BlockScale block_scale(uint32_t largest_bits) {
  constexpr uint32_t infinity = 0x7f800000U, quiet_nan = 0x7fc00000U;
  constexpr uint32_t least = (127U - 100U) << 23;  // 2^-100: a smaller number's inverse might be infinite
  constexpr float largest_code = 127.0F;
  if (largest_bits >= infinity) return {std::bit_cast<float>(quiet_nan), 0.0F};
  if (largest_bits < least) return {0.0F, 0.0F};
  const float largest = std::bit_cast<float>(largest_bits);
  return {largest / largest_code, largest_code / largest};
}

// RETURNS the code of x, from -127 to 127 in two's complement. Adding `magic` leaves the nearest integer in the low
// bits of the sum.
constexpr uint8_t block_code(float x, float inverse) {
  constexpr float magic = 12582912.0F;  // 1.5 * 2^23
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(x * inverse + magic));
}

constexpr float from_block_code(uint8_t code, float scale) {
  return static_cast<float>(static_cast<int8_t>(code)) * scale;
}

// Encodes x. With m the largest magnitude of a block, scale = m / 127 and code = x / scale, rounded to the nearest
// integer. The error of code * scale is at most m / 254, and a part in 10^4 of that from f32 arithmetic. m below 2^-100
// counts as 0. A block with an infinity or NaN gets the scale NaN.
struct EncodeBlocks {
  static constexpr std::string_view name = "encode_blocks";
  Matrix x;       // [N, cols] f32, bf16 or f16
  Matrix codes;   // [N, cols] u8 out
  Matrix scales;  // [N, code_blocks(cols)] f32 out
};

// x = code * scale, rounded to the dtype of x.
struct DecodeBlocks {
  static constexpr std::string_view name = "decode_blocks";
  Matrix codes, scales;
  Matrix x;  // out
};

}  // namespace gptrain::ops
