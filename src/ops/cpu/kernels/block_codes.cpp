#include "ops/block_codes.h"

#include <cmath>

#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// Returns the bits of the largest magnitude of a block.
template <typename T>
uint32_t largest_magnitude(const T* x, int64_t count) {
  int32_t largest = 0;  // magnitudes compare like their bits
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = __builtin_bit_cast(int32_t, load(x + i)) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return static_cast<uint32_t>(largest);
}

template <typename T>
void encode_block(const T* x, uint8_t* codes, float* scale, int64_t count) {
  const BlockScale of_block = block_scale(largest_magnitude(x, count));
  *scale = of_block.scale;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) codes[i] = block_code(load(x + i), of_block.inverse);
}

void encode_block_in_4_bits(const float* x, uint8_t* codes, float* scale, int64_t count) {
  const BlockScale of_block = block_scale(largest_magnitude(x, count), 7.0F);
  *scale = of_block.scale;
  for (int64_t i = 0; i < count; i += 2) {
    const int low = block_code(x[i], of_block.inverse) & 15;
    const int high = i + 1 < count ? block_code(x[i + 1], of_block.inverse) & 15 : 0;
    codes[i / 2] = static_cast<uint8_t>(low | high << 4);
  }
}

// Eight sums of squares, each of every eighth element, which instructions on vectors can compute at once.
void encode_signs(const float* x, uint8_t* codes, float* scale, int64_t count) {
  float sums[8] = {};
  for (int64_t first = 0; first < count; first += 8) {
    const int64_t end = count - first < 8 ? count - first : 8;
    int byte = 0;
    for (int64_t i = 0; i < end; ++i) {
      sums[i] = sums[i] + x[first + i] * x[first + i];
      byte |= (x[first + i] >= 0 ? 1 : 0) << i;
    }
    codes[first / 8] = static_cast<uint8_t>(byte);
  }
  float sum = 0;
  for (const float part : sums) sum = sum + part;
  *scale = sqrtf(sum / static_cast<float>(count));
}

// Calls body(first column, count, block) for the blocks of a row.
template <typename Body>
void for_each_block(int64_t cols, const Body& body) {
  for (int64_t first = 0; first < cols; first += code_block)
    body(first, cols - first < code_block ? cols - first : code_block, first / code_block);
}

// The codes of a block start with a byte of their own, as code_block is a multiple of 8.
void encode_packed(const EncodeBlocks& op, int64_t first_row, int64_t end_row) {
  for (int64_t row = first_row; row < end_row; ++row) {
    const float* x = row_of<float>(op.x, row);
    uint8_t* codes = row_of<uint8_t>(op.codes, row);
    float* scales = row_of<float>(op.scales, row);
    for_each_block(op.x.cols, [&](int64_t first, int64_t count, int64_t block) {
      auto* const encode = op.bits == 1 ? encode_signs : encode_block_in_4_bits;
      encode(x + first, codes + code_bytes_of(first, op.bits), scales + block, count);
    });
  }
}

void decode_packed(const DecodeBlocks& op, int64_t first_row, int64_t end_row) {
  for (int64_t row = first_row; row < end_row; ++row) {
    float* x = row_of<float>(op.x, row);
    const uint8_t* codes = row_of<uint8_t>(op.codes, row);
    const float* scales = row_of<float>(op.scales, row);
    for_each_block(op.x.cols, [&](int64_t first, int64_t count, int64_t block) {
      const float scale = scales[block];
      if (op.bits == 1) {
        for (int64_t i = first; i < first + count; ++i) x[i] = from_packed_code(codes[i / 8], i % 8, 1, scale);
      } else {
        for (int64_t i = first; i < first + count; ++i) x[i] = from_packed_code(codes[i / 2], i % 2, 4, scale);
      }
    });
  }
}

}  // namespace

void encode_blocks(const EncodeBlocks& op, int64_t first_row, int64_t end_row) {
  if (op.bits < 8) return encode_packed(op, first_row, end_row);
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t row = first_row; row < end_row; ++row) {
      const T* x = row_of<T>(op.x, row);
      uint8_t* codes = row_of<uint8_t>(op.codes, row);
      float* scales = row_of<float>(op.scales, row);
      for_each_block(op.x.cols, [&](int64_t first, int64_t count, int64_t block) {
        encode_block(x + first, codes + first, scales + block, count);
      });
    }
  });
}

void decode_blocks(const DecodeBlocks& op, int64_t first_row, int64_t end_row) {
  if (op.bits < 8) return decode_packed(op, first_row, end_row);
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t row = first_row; row < end_row; ++row) {
      T* x = row_of<T>(op.x, row);
      const uint8_t* codes = row_of<uint8_t>(op.codes, row);
      const float* scales = row_of<float>(op.scales, row);
      for_each_block(op.x.cols, [&](int64_t first, int64_t count, int64_t block) {
        const float scale = scales[block];
#pragma omp simd
        for (int64_t i = first; i < first + count; ++i) store(x + i, from_block_code(codes[i], scale));
      });
    }
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
