// A matrix product by tiles of 64 x 64 elements, 4 x 4 to a thread.
#include "kernels/rows.h"
#include "kernels/tiled_product.h"

namespace gptrain {
namespace {

constexpr int tile = 64;
constexpr int slice = 16;  // of the depth, in shared memory at a time
constexpr int per_thread = 4;
constexpr int threads_across = tile / per_thread;
constexpr int threads = threads_across * threads_across;

// An operand by (place along the result's side, depth).
template <typename T>
struct Factor {
  const T* data;
  int64_t length;  // of the result's side
  int64_t step;    // elements from one place along it to the next
  int64_t depth_step;

  // `along_rows`: the result's side is the matrix's rows.
  Factor(const Matrix& matrix, bool along_rows)
      : data(matrix.as<const T>()),
        length(along_rows ? matrix.rows : matrix.cols),
        step(along_rows ? matrix.stride : 1),
        depth_step(along_rows ? 1 : matrix.stride) {}
};

struct Tiles {
  float a[slice][tile + 1], b[slice][tile + 1];  // one more: a column's elements lie in different banks
};

// tile[k][i] = the factor at (first + i, first_depth + k), zero outside it. Neighbouring threads read neighbours.
template <typename T>
__device__ void load_tile(float (&to)[slice][tile + 1], const Factor<T>& from, int64_t first, int64_t first_depth,
                          int64_t depth) {
  for (int place = static_cast<int>(threadIdx.x); place < tile * slice; place += threads) {
    const int i = from.step == 1 ? place % tile : place / slice;
    const int k = from.step == 1 ? place / tile : place % slice;
    const bool inside = first + i < from.length && first_depth + k < depth;
    to[k][i] = inside ? to_float(from.data[(first + i) * from.step + (first_depth + k) * from.depth_step]) : 0.0F;
  }
}

template <typename T, typename C>
__global__ void tiled_product(Factor<T> a, Factor<T> b, const T* bias, Rows<C> c, int64_t depth, bool accumulate) {
  Tiles& tiles = shared<Tiles>();
  const int64_t tiles_across = (b.length + tile - 1) / tile;
  const int64_t first_row = blockIdx.x / tiles_across * tile;
  const int64_t first_col = blockIdx.x % tiles_across * tile;
  const int down = static_cast<int>(threadIdx.x) / threads_across;
  const int across = static_cast<int>(threadIdx.x) % threads_across;
  float sums[per_thread][per_thread] = {};
  for (int64_t first = 0; first < depth; first += slice) {
    load_tile(tiles.a, a, first_row, first, depth);
    load_tile(tiles.b, b, first_col, first, depth);
    __syncthreads();
    for (int k = 0; k < slice; ++k)
      for (int i = 0; i < per_thread; ++i)
        for (int j = 0; j < per_thread; ++j)
          sums[i][j] += tiles.a[k][down + i * threads_across] * tiles.b[k][across + j * threads_across];
    __syncthreads();  // before the next slice is written
  }
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int64_t row = first_row + down + i * threads_across;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      const int64_t col = first_col + across + j * threads_across;
      if (row >= a.length || col >= b.length) continue;
      float value = sums[i][j];
      if (bias != nullptr) value += to_float(bias[col]);
      if (accumulate) value += to_float(*c.at(row, col));
      *c.at(row, col) = rounded_to<C>(value);
    }
  }
}

}  // namespace

void cuda_run(const Product& product, Stream stream) {
  const int64_t down = (product.c.rows + tile - 1) / tile;
  const int64_t across = (product.c.cols + tile - 1) / tile;
  with_type(product.c.dtype, [&](auto result) {
    with_type_beside(result, product.a.dtype, [&](auto operand) {
      using T = decltype(operand);
      using C = decltype(result);
      launch(stream, {down * across, threads, sizeof(Tiles)}, tiled_product<T, C>,
             Factor<T>(product.a, !product.a_transposed), Factor<T>(product.b, product.b_transposed),
             product.bias.as<const T>(), Rows<C>(product.c), product.depth(), product.accumulate);
    });
  });
}

}  // namespace gptrain
