// Buffers of a thread that computes tiles or blocks of products (MatrixKernels::tiled_linear, linear_block).
#pragma once

#include "ops/cpu/kernels/matrix_kernel_table.h"
#include "ops/cpu/scratch_carver.h"

namespace gptrain::inline ops {

inline TiledLinearBuffers carve_tiled(ScratchCarver& carver) {
  constexpr int64_t square = tile_size * tile_size;
  TiledLinearBuffers buffers;
  buffers.a = carver.take<Unit>(square);
  buffers.b = carver.take<Unit>(square);
  buffers.staging = carver.take<Unit>(square);
  buffers.c = carver.take<float>(square);
  return buffers;
}

// RETURNS the bytes of one thread's buffers, at any alignment.
inline int64_t tiled_buffer_bytes() {
  ScratchCarver counter(nullptr);
  carve_tiled(counter);
  return counter.bytes();
}

inline LinearBlockBuffers carve_block(ScratchCarver& carver) {
  constexpr int64_t strip_units = linear_block_strip * linear_block_depth / 2;
  LinearBlockBuffers buffers;
  buffers.b = carver.take<Unit>(linear_block_cols / linear_block_strip * strip_units);
  buffers.a = carver.take<Unit>(2 * strip_units);
  buffers.sums = carver.take<float>(linear_block_rows * linear_block_cols);
  return buffers;
}

}  // namespace gptrain::ops
