// One tile of a matrix product, summed by a block in depth order. Used by our own product and by the check of a
// library's.
#pragma once

#include <cstdint>

#include "simt.h"

namespace gptrain::inline cuda::product_tile {

constexpr int side = 64;   // rows and columns of a tile
constexpr int slice = 16;  // depth of the part in shared memory
constexpr int per_thread = 4;
constexpr int threads_across = side / per_thread;
constexpr int threads = threads_across * threads_across;

struct Slices {
  float a[slice][side + 1], b[slice][side + 1];  // padded by one: a column's elements lie in different banks
};

// Row and column, within the tile, of a thread's first element; its others are threads_across apart.
__device__ inline int own_row() { return static_cast<int>(threadIdx.x) / threads_across; }
__device__ inline int own_column() { return static_cast<int>(threadIdx.x) % threads_across; }

// to[k][i] = element (first + i, first_depth + k) of the operand, zero outside it. Neighbouring threads read
// neighbouring elements.
template <typename Operand>
__device__ void load_slice(float (&to)[slice][side + 1], const Operand& from, int64_t first, int64_t first_depth,
                           int64_t depth) {
  for (int index = static_cast<int>(threadIdx.x); index < side * slice; index += threads) {
    const int i = from.is_contiguous() ? index % side : index / slice;
    const int k = from.is_contiguous() ? index / side : index % slice;
    const bool inside = first + i < from.length && first_depth + k < depth;
    to[k][i] = inside ? from.at(first + i, first_depth + k) : 0.0F;
  }
}

// Calls add(i, j, x, y) for each product of the thread's element (i, j), i and j < per_thread. An operand has `length`
// along the result's side, is_contiguous() (true if neighbours along that side are adjacent in memory), and at(index
// along the side, depth). REQUIRES: all threads of the block call it.
template <typename A, typename B, typename Add>
__device__ void for_each_product(const A& a, int64_t first_row, const B& b, int64_t first_column, int64_t depth,
                                 Slices& slices, const Add& add) {
  const int down = own_row(), across = own_column();
  for (int64_t first = 0; first < depth; first += slice) {
    load_slice(slices.a, a, first_row, first, depth);
    load_slice(slices.b, b, first_column, first, depth);
    __syncthreads();
    for (int k = 0; k < slice; ++k) {
#pragma unroll
      for (int i = 0; i < per_thread; ++i)
#pragma unroll
        for (int j = 0; j < per_thread; ++j)
          add(i, j, slices.a[k][down + i * threads_across], slices.b[k][across + j * threads_across]);
    }
    __syncthreads();  // until no thread reads the slice
  }
}

}  // namespace gptrain::cuda::product_tile
