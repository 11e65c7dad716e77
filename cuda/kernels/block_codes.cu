// 8-bit codes with one scale per block of a row. A warp finds a block's scale and encodes it.
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
    for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
      const uint32_t other = __shfl_xor_sync(0xffffffff, largest, lanes);
      largest = other > largest ? other : largest;
    }
    const BlockScale of_block = block_scale(largest);
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

}  // namespace

void cuda_run(const EncodeBlocks& op, Stream stream, std::byte*) {
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t rows = op.x.rows, cols = op.x.cols;
    auto* kernel = in_packs({op.x, op.codes}) ? encode<true, T> : encode<false, T>;
    launch(stream, shape_of_elements(rows, code_blocks(cols) * code_block, lane_columns), kernel, Rows<const T>(op.x),
           Rows<uint8_t>(op.codes), Rows<float>(op.scales), rows, cols);
  });
}

void cuda_run(const DecodeBlocks& op, Stream stream, std::byte*) {
  with_type(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t rows = op.x.rows, cols = op.x.cols;
    auto* kernel = in_packs({op.x, op.codes}) ? decode<true, T> : decode<false, T>;
    launch(stream, shape_of_elements(rows, whole_packs(cols), pack_width), kernel, Rows<const uint8_t>(op.codes),
           Rows<const float>(op.scales), Rows<T>(op.x), rows, cols);
  });
}

}  // namespace gptrain::cuda
