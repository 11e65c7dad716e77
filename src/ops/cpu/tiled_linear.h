// Buffers of a thread that computes tiles of products (MatrixKernels::tiled_linear).
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

}  // namespace gptrain::ops
