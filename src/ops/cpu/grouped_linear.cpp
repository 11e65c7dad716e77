// The linears of all experts of a mixture in one pass: tiles of the experts' results, shared out over the threads. The
// number of an expert's tiles follows its rows, so that no thread waits for the largest expert, and each weight is read
// once for every 64 rows of its expert.
#include <algorithm>
#include <omp.h>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/tiled_linear.h"

namespace gptrain::inline ops {
namespace {

int64_t tiles_of(int64_t length) { return (length + tile_size - 1) / tile_size; }

int64_t grouped_scratch_bytes(int64_t num_experts, int num_threads) {
  ScratchCarver counter(nullptr);
  counter.take<int64_t>(num_experts + 1);
  return counter.bytes() + num_threads * tiled_buffer_bytes();
}

// RETURNS the product of an expert, which has rows [first, first + count).
template <typename MakeProduct>
void run_grouped(const Matrix& offsets, const CpuContext& context, const MakeProduct& make_product) {
  const MatrixKernels& kernels = select_matrix_kernels();
  const int64_t num_experts = offsets.cols - 1;
  const auto* const starts = offsets.as<const int32_t>();
  const auto product_of = [&](int64_t expert) {
    return make_product(expert, starts[expert], starts[expert + 1] - starts[expert]);
  };
  ScratchCarver shared(context.scratch);
  int64_t* const first_tiles = shared.take<int64_t>(num_experts + 1);
  first_tiles[0] = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const TiledLinear product = product_of(e);
    first_tiles[e + 1] = first_tiles[e] + tiles_of(product.rows) * tiles_of(product.cols);
  }
  std::byte* const buffers = context.scratch + grouped_scratch_bytes(num_experts, 0);
  const int64_t num_tiles = first_tiles[num_experts];
#pragma omp parallel num_threads(context.num_threads)
  {
    ScratchCarver carver(buffers + omp_get_thread_num() * tiled_buffer_bytes());
    const TiledLinearBuffers own = carve_tiled(carver);
#pragma omp for schedule(dynamic, 4)
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t expert = std::upper_bound(first_tiles, first_tiles + num_experts + 1, tile) - first_tiles - 1;
      const TiledLinear product = product_of(expert);
      // Tiles of the same rows follow each other, so that rows of weights' gradients are written from end to end.
      const int64_t index = tile - first_tiles[expert], across = tiles_of(product.cols);
      kernels.tiled_linear(product, index / across * tile_size, index % across * tile_size, own);
    }
  }
}

const void* row_address(const Matrix& matrix, int64_t row) { return matrix.row_range(row, 1).data; }

}  // namespace

int64_t cpu_scratch_bytes(const GroupedLinearForward& op, int num_threads) {
  return grouped_scratch_bytes(op.offsets.cols - 1, num_threads);
}
int64_t cpu_scratch_bytes(const GroupedLinearBackwardInput& op, int num_threads) {
  return grouped_scratch_bytes(op.offsets.cols - 1, num_threads);
}
int64_t cpu_scratch_bytes(const GroupedLinearBackwardWeight& op, int num_threads) {
  return grouped_scratch_bytes(op.offsets.cols - 1, num_threads);
}

void cpu_run(const GroupedLinearForward& op, const CpuContext& context) {
  run_grouped(op.offsets, context, [&](int64_t expert, int64_t first, int64_t count) {
    return TiledLinear{.rows = count,
                       .cols = op.y.cols,
                       .depth = op.x.cols,
                       .a = row_address(op.x, first),
                       .b = row_address(op.w, expert * op.y.cols),
                       .operand_dtype = op.x.dtype,
                       .a_row_stride = op.x.stride,
                       .a_col_stride = 1,
                       .b_row_stride = 1,
                       .b_col_stride = op.w.stride,
                       .bias = nullptr,
                       .c = op.y.row_range(first, 1).data,
                       .c_dtype = op.y.dtype,
                       .c_stride = op.y.stride,
                       .accumulate = false};
  });
}

void cpu_run(const GroupedLinearBackwardInput& op, const CpuContext& context) {
  run_grouped(op.offsets, context, [&](int64_t expert, int64_t first, int64_t count) {
    return TiledLinear{.rows = count,
                       .cols = op.dx.cols,
                       .depth = op.dy.cols,
                       .a = row_address(op.dy, first),
                       .b = row_address(op.w, expert * op.dy.cols),
                       .operand_dtype = op.dy.dtype,
                       .a_row_stride = op.dy.stride,
                       .a_col_stride = 1,
                       .b_row_stride = op.w.stride,
                       .b_col_stride = 1,
                       .bias = nullptr,
                       .c = op.dx.row_range(first, 1).data,
                       .c_dtype = op.dx.dtype,
                       .c_stride = op.dx.stride,
                       .accumulate = false};
  });
}

void cpu_run(const GroupedLinearBackwardWeight& op, const CpuContext& context) {
  run_grouped(op.offsets, context, [&](int64_t expert, int64_t first, int64_t count) {
    return TiledLinear{.rows = op.dy.cols,
                       .cols = op.x.cols,
                       .depth = count,
                       .a = row_address(op.dy, first),
                       .b = row_address(op.x, first),
                       .operand_dtype = op.dy.dtype,
                       .a_row_stride = 1,
                       .a_col_stride = op.dy.stride,
                       .b_row_stride = op.x.stride,
                       .b_col_stride = 1,
                       .bias = nullptr,
                       .c = op.dw.row_range(expert * op.dy.cols, 1).data,
                       .c_dtype = DType::f32,
                       .c_stride = op.dw.stride,
                       .accumulate = op.accumulate,
                       .writes_past_caches = !op.accumulate};
  });
}

}  // namespace gptrain::ops
