// A matrix product in tiles of 64 x 64 elements, 4 x 4 per thread.
#include "kernels/product_tile.h"
#include "kernels/rows.h"
#include "kernels/tiled_product.h"

namespace gptrain::inline cuda {
namespace {

using namespace product_tile;

// An operand addressed by (index along the result's side, depth).
template <typename T>
struct GemmOperand {
  const T* data;
  int64_t length;  // size along the result's side
  int64_t step;    // elements from one index to the next
  int64_t depth_step;

  // `along_rows`: the matrix's rows lie along the result's side.
  GemmOperand(const Matrix& matrix, bool along_rows)
      : data(matrix.as<const T>()),
        length(along_rows ? matrix.rows : matrix.cols),
        step(along_rows ? matrix.stride : 1),
        depth_step(along_rows ? 1 : matrix.stride) {}

  __device__ bool is_contiguous() const { return step == 1; }
  __device__ float at(int64_t index, int64_t depth) const { return to_float(data[index * step + depth * depth_step]); }
};

template <typename T, typename C>
__global__ void tiled_product(GemmOperand<T> a, GemmOperand<T> b, const T* bias, Rows<C> c, int64_t depth,
                              bool accumulate) {
  const int64_t tiles_across = (b.length + side - 1) / side;
  const int64_t first_row = blockIdx.x / tiles_across * side;
  const int64_t first_col = blockIdx.x % tiles_across * side;
  float sums[per_thread][per_thread] = {};
  for_each_product(a, first_row, b, first_col, depth, shared<Slices>(),
                   [&](int i, int j, float x, float y) { sums[i][j] += x * y; });
#pragma unroll
  for (int i = 0; i < per_thread; ++i) {
    const int64_t row = first_row + own_row() + i * threads_across;
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      const int64_t col = first_col + own_column() + j * threads_across;
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
  const int64_t down = (product.c.rows + side - 1) / side;
  const int64_t across = (product.c.cols + side - 1) / side;
  with_type(product.c.dtype, [&](auto result) {
    with_type_beside(result, product.a.dtype, [&](auto operand) {
      using T = decltype(operand);
      using C = decltype(result);
      launch(stream, {down * across, threads, sizeof(Slices)}, tiled_product<T, C>,
             GemmOperand<T>(product.a, !product.a_transposed), GemmOperand<T>(product.b, product.b_transposed),
             product.bias.as<const T>(), Rows<C>(product.c), product.depth(), product.accumulate);
    });
  });
}

}  // namespace gptrain::cuda
