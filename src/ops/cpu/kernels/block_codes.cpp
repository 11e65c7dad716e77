#include "ops/block_codes.h"

#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

template <typename T>
void encode_block(const T* x, uint8_t* codes, float* scale, int64_t count) {
  int32_t largest = 0;  // magnitudes compare like their bits
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = __builtin_bit_cast(int32_t, load(x + i)) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  const BlockScale of_block = block_scale(static_cast<uint32_t>(largest));
  *scale = of_block.scale;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) codes[i] = block_code(load(x + i), of_block.inverse);
}

// Calls body(first column, count, block) for the blocks of a row.
template <typename Body>
void for_each_block(int64_t cols, const Body& body) {
  for (int64_t first = 0; first < cols; first += code_block)
    body(first, cols - first < code_block ? cols - first : code_block, first / code_block);
}

}  // namespace

void encode_blocks(const EncodeBlocks& op, int64_t first_row, int64_t end_row) {
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
