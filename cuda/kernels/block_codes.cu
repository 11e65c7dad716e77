// Codes of 8, 4 or 1 bits with one scale per block of a row. A warp finds a block's scale and encodes it.
#include <bit>

#include "kernels/rows.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

constexpr int lane_columns = code_block / 32;  // consecutive columns of a block per lane

// Loads N neighbours of a row; columns past the end are 0. `wide`: all rows start at, and consist of, whole packs of
// pack_width.
template <bool wide, int N, typename T>
__device__ Pack<T, N> neighbours(const Rows<const T>& rows, int64_t row, int64_t column, int64_t cols) {
  if constexpr (wide) {
    return column < cols ? load<N>(rows.at(row, column)) : Pack<T, N>{};
  } else {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack.at[i] = column + i < cols ? *rows.at(row, column + i) : T{};
    return pack;
  }
}
template <bool wide, int N, typename T>
__device__ void store_neighbours(const Rows<T>& rows, int64_t row, int64_t column, int64_t cols,
                                 const Pack<T, N>& pack) {
  if constexpr (wide) {
    if (column < cols) store(rows.at(row, column), pack);
  } else {
    for (int i = 0; i < N; ++i)
      if (column + i < cols) *rows.at(row, column + i) = pack.at[i];
  }
}

// Returns the largest bits of the magnitudes of a block, of which each lane of the warp has one.
__device__ uint32_t largest_of_block(uint32_t largest) {
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffff, largest, lanes);
    largest = other > largest ? other : largest;
  }
  return largest;
}

// The grid divides whole blocks, so the lanes of a warp work on the same block.
template <bool wide, typename T>
__global__ void encode(Rows<const T> x, Rows<uint8_t> codes, Rows<float> scales, int64_t rows, int64_t cols) {
  for_each_pack<lane_columns>(rows, code_blocks(cols) * code_block, [&](int64_t row, int64_t column) {
    const auto in = neighbours<wide, lane_columns>(x, row, column, cols);
    uint32_t largest = 0;  // magnitudes are ordered as their bits
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(to_float(in.at[i])) & 0x7fffffffU;
      largest = magnitude > largest ? magnitude : largest;
    }
    const BlockScale of_block = block_scale(largest_of_block(largest));
    Pack<uint8_t, lane_columns> out;
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) out.at[i] = block_code(to_float(in.at[i]), of_block.inverse);
    store_neighbours<wide>(codes, row, column, cols, out);
    if (column % code_block == 0) *scales.at(row, column / code_block) = of_block.scale;
  });
}

__host__ __device__ constexpr int64_t whole_packs(int64_t cols) {
  return (cols + pack_width - 1) / pack_width * pack_width;
}

template <bool wide, typename T>
__global__ void decode(Rows<const uint8_t> codes, Rows<const float> scales, Rows<T> x, int64_t rows, int64_t cols) {
  for_each_pack<pack_width>(rows, whole_packs(cols), [&](int64_t row, int64_t column) {
    const auto in = neighbours<wide, pack_width>(codes, row, column, cols);
    const float scale = *scales.at(row, column / code_block);
    Pack<T, pack_width> out;
#pragma unroll
    for (int i = 0; i < pack_width; ++i) out.at[i] = rounded_to<T>(from_block_code(in.at[i], scale));
    store_neighbours<wide>(x, row, column, cols, out);
  });
}

__global__ void encode_4_bits(Rows<const float> x, Rows<uint8_t> codes, Rows<float> scales, int64_t rows,
                              int64_t cols) {
  for_each_pack<lane_columns>(rows, code_blocks(cols) * code_block, [&](int64_t row, int64_t column) {
    const auto in = neighbours<false, lane_columns>(x, row, column, cols);
    uint32_t largest = 0;
    for (int i = 0; i < lane_columns; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(in.at[i]) & 0x7fffffffU;
      largest = magnitude > largest ? magnitude : largest;
    }
    const BlockScale of_block = block_scale(largest_of_block(largest), 7.0F);
    for (int i = 0; i < lane_columns; i += 2) {
      if (column + i >= cols) break;
      const int low = block_code(in.at[i], of_block.inverse) & 15;
      const int high = column + i + 1 < cols ? block_code(in.at[i + 1], of_block.inverse) & 15 : 0;
      *codes.at(row, (column + i) / 2) = static_cast<uint8_t>(low | high << 4);
    }
    if (column % code_block == 0) *scales.at(row, column / code_block) = of_block.scale;
  });
}

// A lane has half a byte of signs, its neighbour the other half.
__global__ void encode_signs(Rows<const float> x, Rows<uint8_t> codes, Rows<float> scales, int64_t rows, int64_t cols) {
  static_assert(lane_columns == 4);
  for_each_pack<lane_columns>(rows, code_blocks(cols) * code_block, [&](int64_t row, int64_t column) {
    const auto in = neighbours<false, lane_columns>(x, row, column, cols);
    float sum = 0;
    uint32_t signs = 0;
    for (int i = 0; i < lane_columns; ++i) {
      sum = sum + in.at[i] * in.at[i];
      signs |= (in.at[i] >= 0 && column + i < cols ? 1U : 0U) << i;
    }
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum = sum + __shfl_xor_sync(0xffffffff, sum, lanes);
    const uint32_t after = __shfl_xor_sync(0xffffffff, signs, 1U);
    if (column % 8 == 0 && column < cols) *codes.at(row, column / 8) = static_cast<uint8_t>(signs | after << 4);
    if (column % code_block != 0) return;
    const int64_t count = cols - column < code_block ? cols - column : code_block;
    *scales.at(row, column / code_block) = sqrtf(sum / static_cast<float>(count));
  });
}

template <int bits>
__global__ void decode_packed(Rows<const uint8_t> codes, Rows<const float> scales, Rows<float> x, int64_t rows,
                              int64_t cols) {
  for_each_pack<pack_width>(rows, whole_packs(cols), [&](int64_t row, int64_t column) {
    const float scale = *scales.at(row, column / code_block);
    for (int64_t i = column; i < column + pack_width && i < cols; ++i)
      *x.at(row, i) = from_packed_code(*codes.at(row, i * bits / 8), i % (8 / bits), bits, scale);
  });
}

}  // namespace

void cuda_run(const EncodeBlocks& op, Stream stream, std::byte*) {
  if (op.bits < 8) {
    auto* kernel = op.bits == 1 ? encode_signs : encode_4_bits;
    launch(stream, shape_of_elements(op.x.rows, code_blocks(op.x.cols) * code_block, lane_columns), kernel,
           Rows<const float>(op.x), Rows<uint8_t>(op.codes), Rows<float>(op.scales), op.x.rows, op.x.cols);
    return;
  }
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t rows = op.x.rows, cols = op.x.cols;
    auto* kernel = in_packs({op.x, op.codes}) ? encode<true, T> : encode<false, T>;
    launch(stream, shape_of_elements(rows, code_blocks(cols) * code_block, lane_columns), kernel, Rows<const T>(op.x),
           Rows<uint8_t>(op.codes), Rows<float>(op.scales), rows, cols);
  });
}

void cuda_run(const DecodeBlocks& op, Stream stream, std::byte*) {
  if (op.bits < 8) {
    auto* kernel = op.bits == 1 ? decode_packed<1> : decode_packed<4>;
    launch(stream, shape_of_elements(op.x.rows, whole_packs(op.x.cols), pack_width), kernel,
           Rows<const uint8_t>(op.codes), Rows<const float>(op.scales), Rows<float>(op.x), op.x.rows, op.x.cols);
    return;
  }
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t rows = op.x.rows, cols = op.x.cols;
    auto* kernel = in_packs({op.x, op.codes}) ? decode<true, T> : decode<false, T>;
    launch(stream, shape_of_elements(rows, whole_packs(cols), pack_width), kernel, Rows<const uint8_t>(op.codes),
           Rows<const float>(op.scales), Rows<T>(op.x), rows, cols);
  });
}

}  // namespace gptrain::cuda
