// The linears of all experts of a mixture in one pass: tiles or blocks of the experts' results, shared out over the
// threads. Their number follows an expert's rows, so that no thread waits for the largest expert. Few rows of an expert
// multiply its weights faster than memory delivers these: blocks fetch the weights ahead and read them from end to end,
// once for every 128 rows of floats, or once for every 512 if weights are transposed or products run on AMX tiles.
#include <algorithm>
#include <atomic>
#include <omp.h>
#include <utility>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/tiled_linear.h"

namespace gptrain::inline ops {
namespace {

int64_t tiles_of(int64_t length) { return (length + tile_size - 1) / tile_size; }

int64_t grouped_thread_bytes() {
  ScratchCarver counter(nullptr);
  carve_block(counter);
  return std::max(counter.bytes(), tiled_buffer_bytes());
}

int64_t grouped_scratch_bytes(int64_t num_experts, int num_threads) {
  ScratchCarver counter(nullptr);
  counter.take<int64_t>(num_experts + 1);
  return counter.bytes() + num_threads * grouped_thread_bytes();
}

// The same product by its columns: weights, which are read once, become the rows that pass by, and rows of tokens stay.
TiledLinear by_columns(const TiledLinear& op) {
  TiledLinear swapped = op;
  std::swap(swapped.rows, swapped.cols);
  std::swap(swapped.a, swapped.b);
  std::swap(swapped.a_row_stride, swapped.b_col_stride);
  std::swap(swapped.a_col_stride, swapped.b_row_stride);
  swapped.c_by_columns = true;
  return swapped;
}

// Blocks of an expert's product (MatrixKernels::linear_block, float_rows).
class ExpertBlocks {
 public:
  // `parts`: wanted, so that all threads have work. `fetches`: an operand is weights.
  ExpertBlocks(const TiledLinear& op, int64_t parts, bool fetches) : op_(op), fetches_(fetches) {
    constexpr int64_t least = 128;
    const bool floats = op.operand_dtype == DType::f32;
    const bool few_rows = floats || (fetches_ && !op.c_by_columns && op.rows <= linear_few_rows);
    int64_t most_cols = few_rows ? linear_few_rows_cols : linear_block_cols;
    int64_t most_rows = op.depth > linear_block_depth ? linear_block_rows : op.rows;
    if (floats && op.b_col_stride != 1) {
      // Weights are transposed once for all rows.
      most_rows = linear_block_rows;
      most_cols = tile_size;
    } else if (floats && op.rows > tile_size) {
      most_rows = 2 * tile_size;
      most_cols = linear_block_cols;
    }
    int64_t down = divide(op.rows, most_rows), across = divide(op.cols, most_cols);
    if (fetches_ && !op.c_by_columns) {
      across = std::max(across, std::min(parts, op.cols / least));
    } else {
      down = std::max(down, std::min(parts, op.rows / least));
    }
    rows_ = size_of(op.rows, down);
    cols_ = size_of(op.cols, across);
  }

  int64_t count() const { return down() * divide(op_.cols, cols_); }
  LinearBlock block(int64_t index) const {
    const int64_t row = index % down() * rows_, col = index / down() * cols_;
    return {row, col, std::min(rows_, op_.rows - row), std::min(cols_, op_.cols - col), fetches_};
  }
  // RETURNS the weights that a block begins with, nullptr for gradients of weights.
  const void* weights_of(int64_t index) const {
    if (!fetches_) return nullptr;
    const LinearBlock first = block(index);
    const int64_t element = op_.c_by_columns ? first.row * op_.a_row_stride : first.col * op_.b_col_stride;
    return static_cast<const std::byte*>(op_.c_by_columns ? op_.a : op_.b) + element * dtype_bytes(op_.operand_dtype);
  }

 private:
  static int64_t divide(int64_t a, int64_t b) { return b == 0 ? 0 : (a + b - 1) / b; }
  static int64_t size_of(int64_t length, int64_t parts) {
    return divide(divide(length, parts), linear_block_strip) * linear_block_strip;
  }
  int64_t down() const { return divide(op_.rows, rows_); }

  TiledLinear op_;
  bool fetches_;
  int64_t rows_, cols_;
};

// The units of work of all experts, tiles or blocks, in the order of memory.
struct GroupedWork {
  const int32_t* starts;  // first row of each expert, and the end
  int64_t num_experts;
  int64_t* first_units;  // first unit of each expert, and the end

  GroupedWork(const Matrix& offsets, ScratchCarver& carver)
      : starts(offsets.as<const int32_t>()),
        num_experts(offsets.cols - 1),
        first_units(carver.take<int64_t>(num_experts + 1)) {}

  int64_t first_row(int64_t expert) const { return starts[expert]; }
  int64_t num_rows(int64_t expert) const { return starts[expert + 1] - starts[expert]; }
  int64_t num_units() const { return first_units[num_experts]; }
  int64_t expert_of(int64_t unit) const {
    return std::upper_bound(first_units, first_units + num_experts + 1, unit) - first_units - 1;
  }
  template <typename CountUnits>
  void count(const CountUnits& count_units) {
    first_units[0] = 0;
    for (int64_t e = 0; e < num_experts; ++e) first_units[e + 1] = first_units[e] + count_units(e);
  }
};

// Computes all products in tiles. RETURNS of make_product(expert): the product of its rows.
template <typename MakeProduct>
void run_tiles(GroupedWork& work, std::byte* buffers, int num_threads, const MakeProduct& make_product) {
  const MatrixKernels& kernels = select_matrix_kernels();
  work.count([&](int64_t expert) {
    const TiledLinear product = make_product(expert);
    return tiles_of(product.rows) * tiles_of(product.cols);
  });
  // Each tile fetches columns of the next, so that threads take several.
  const int64_t run = std::clamp<int64_t>(work.num_units() / (16 * num_threads), 4, 16);
#pragma omp parallel num_threads(num_threads)
  {
    ScratchCarver carver(buffers + omp_get_thread_num() * grouped_thread_bytes());
    const TiledLinearBuffers own = carve_tiled(carver);
#pragma omp for schedule(dynamic, run)
    for (int64_t tile = 0; tile < work.num_units(); ++tile) {
      const int64_t expert = work.expert_of(tile);
      const TiledLinear product = make_product(expert);
      // Tiles of the same rows follow each other, so that rows of weights' gradients are written from end to end.
      const int64_t index = tile - work.first_units[expert], across = tiles_of(product.cols);
      kernels.tiled_linear(product, index / across * tile_size, index % across * tile_size, own);
    }
  }
}

// A kernel that computes blocks. `fetches`: an operand is weights.
struct BlockKernel {
  void (*compute)(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers);
  bool fetches;
};

// Computes all products in blocks. Each thread takes its next block before it computes one, whose first
// rows it fetches meanwhile.
template <typename MakeProduct>
void run_blocks(GroupedWork& work, std::byte* buffers, int num_threads, const BlockKernel& kernel,
                const MakeProduct& make_product) {
  constexpr int64_t blocks_per_thread = 4;
  const int64_t all_rows = std::max<int64_t>(work.starts[work.num_experts] - work.starts[0], 1);
  const auto blocks_of = [&](int64_t expert) {
    const int64_t share = blocks_per_thread * num_threads * work.num_rows(expert);
    return ExpertBlocks(make_product(expert), (share + all_rows - 1) / all_rows, kernel.fetches);
  };
  work.count([&](int64_t expert) { return blocks_of(expert).count(); });
  std::atomic<int64_t> taken = 0;
#pragma omp parallel num_threads(num_threads)
  {
    ScratchCarver carver(buffers + omp_get_thread_num() * grouped_thread_bytes());
    const LinearBlockBuffers own = carve_block(carver);
    for (int64_t unit = taken++, next = 0; unit < work.num_units(); unit = next) {
      next = taken++;
      const int64_t expert = work.expert_of(unit);
      LinearBlock block = blocks_of(expert).block(unit - work.first_units[expert]);
      if (next < work.num_units()) {
        const int64_t after = work.expert_of(next);
        block.next = blocks_of(after).weights_of(next - work.first_units[after]);
      }
      kernel.compute(make_product(expert), block, own);
    }
  }
}

// RETURNS of make_product(expert, first, count): the product of rows [first, first + count). `reads_weights`: b is
// weights.
template <typename MakeProduct>
void run_grouped(const Matrix& offsets, const CpuContext& context, bool reads_weights,
                 const MakeProduct& make_product) {
  ScratchCarver shared(context.scratch);
  GroupedWork work(offsets, shared);
  std::byte* const buffers = context.scratch + grouped_scratch_bytes(work.num_experts, 0);
  const auto product_of = [&](int64_t expert) {
    return make_product(expert, work.first_row(expert), work.num_rows(expert));
  };
  const MatrixKernels& kernels = select_matrix_kernels();
  const TiledLinear any = product_of(0);
  const bool many_rows = work.starts[work.num_experts] - work.starts[0] > tile_size * work.num_experts;
  if (any.operand_dtype == DType::f32 && reads_weights && (any.b_col_stride == 1 || many_rows))
    return run_blocks(work, buffers, context.num_threads, {kernels.float_rows, true}, product_of);
  if (any.operand_dtype == DType::f32 || kernels.linear_block == nullptr)
    return run_tiles(work, buffers, context.num_threads, product_of);
  run_blocks(work, buffers, context.num_threads, {kernels.linear_block, reads_weights}, [&](int64_t expert) {
    const TiledLinear product = product_of(expert);
    return reads_weights && product.b_row_stride == 1 ? by_columns(product) : product;
  });
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
  run_grouped(op.offsets, context, true, [&](int64_t expert, int64_t first, int64_t count) {
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
  run_grouped(op.offsets, context, true, [&](int64_t expert, int64_t first, int64_t count) {
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
  run_grouped(op.offsets, context, false, [&](int64_t expert, int64_t first, int64_t count) {
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
