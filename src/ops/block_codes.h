// Lossy codes of 8, 4 or 1 bits for a matrix. In each row, every block of code_block columns has its own scale, so that
// a large element costs the precision of its block only, and no row's codes depend on other rows. Codes of fewer than 8
// bits are packed: the first element of a byte has its lowest bits.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/matrix.h"

namespace gptrain::inline ops {

constexpr int64_t code_block = 128;

// RETURNS the number of blocks, and of scales, in a row.
constexpr int64_t code_blocks(int64_t cols) { return (cols + code_block - 1) / code_block; }

// RETURNS the bytes of the codes of a row.
constexpr int64_t code_bytes_of(int64_t cols, int bits) { return (cols * bits + 7) / 8; }

constexpr bool is_block_code_width(int bits) { return bits == 8 || bits == 4 || bits == 1; }

struct BlockScale {
  float scale;    // factor from code to element
  float inverse;  // factor from element to code
};

// RETURNS the scale of a block whose largest magnitude has these f32 bits. Magnitudes compare like their bits; infinity
// and NaN are the largest.
// `largest_code`: 127 or 7, by the bits of codes.
constexpr BlockScale block_scale(uint32_t largest_bits, float largest_code = 127.0F) {
  constexpr uint32_t infinity = 0x7f800000U, quiet_nan = 0x7fc00000U;
  constexpr uint32_t least = (127U - 100U) << 23;  // 2^-100: a smaller number's inverse might be infinite
  if (largest_bits >= infinity) return {std::bit_cast<float>(quiet_nan), 0.0F};
  if (largest_bits < least) return {0.0F, 0.0F};
  const float largest = std::bit_cast<float>(largest_bits);
  return {largest / largest_code, largest_code / largest};
}

// RETURNS the code of x, from -127 to 127 in two's complement; with the scale for 4 bits from -7 to 7. Adding `magic`
// leaves the nearest integer in the low bits of the sum.
constexpr uint8_t block_code(float x, float inverse) {
  constexpr float magic = 12582912.0F;  // 1.5 * 2^23
  return static_cast<uint8_t>(std::bit_cast<uint32_t>(x * inverse + magic));
}

constexpr float from_block_code(uint8_t code, float scale) {
  return static_cast<float>(static_cast<int8_t>(code)) * scale;
}
// RETURNS the element of a code of 4 or 1 bits in a byte; `at`: its place there.
constexpr float from_packed_code(uint8_t byte, int64_t at, int bits, float scale) {
  if (bits == 1) return (byte >> at & 1) != 0 ? scale : -scale;
  return from_block_code(static_cast<uint8_t>((at == 0 ? byte << 4 : byte) & 0xf0), scale / 16);
}

// Encodes x. With m the largest magnitude of a block, scale = m / 127 and code = x / scale, rounded to the nearest
// integer. The error of code * scale is at most m / 254, and a part in 10^4 of that from f32 arithmetic. m below 2^-100
// counts as 0. A block with an infinity or NaN gets the scale NaN.
//
// With 4 bits, scale = m / 7 and the error is at most m / 14. With 1 bit, scale is the root of the mean of x^2 in the
// block, and the code is 1 for x >= 0, which means scale, and 0 for -scale. The sum of the errors' squares is at most
// that of x^2. Squares are in f32, and those below 2^-126 count as 0.
struct EncodeBlocks {
  static constexpr std::string_view name = "encode_blocks";
  Matrix x;       // [N, cols] f32, bf16 or f16; f32 with fewer than 8 bits
  Matrix codes;   // [N, code_bytes_of(cols, bits)] u8 out
  Matrix scales;  // [N, code_blocks(cols)] f32 out
  int bits = 8;   // 8, 4 or 1
};

// x = code * scale, rounded to the dtype of x.
struct DecodeBlocks {
  static constexpr std::string_view name = "decode_blocks";
  Matrix codes, scales;
  Matrix x;      // out; f32 with fewer than 8 bits
  int bits = 8;  // 8, 4 or 1
};

}  // namespace gptrain::ops
