// Second moments by row and column (see ops/factored.h). All sums have a fixed order.
#include <cmath>
#include <cstdint>

#include "kernels/run.h"
#include "kernels/segments.h"
#include "launch.h"

namespace gptrain::inline cuda {
namespace {

// Columns that a block sums at a time, and threads that divide a column's rows. Small blocks: of eight that fit a
// multiprocessor, the last ones leave less of it idle than of two.
constexpr int64_t tile_cols = 16;
constexpr int64_t tile_lanes = 16;

struct MatrixRanges {
  const FactoredMatrix* matrices;
  const MatrixRange* ranges;
  int64_t num_ranges;
};

// Moments of all matrices, and the means of their row moments.
struct Moments {
  float *rows, *cols;
  double* means;
};

// Calls body(range, index in the range) for this block's items: every gridDim.x-th over all ranges, where a range has
// count(range) items.
template <typename Count, typename Body>
__device__ void for_each_item(const MatrixRanges& all, const Count& count, const Body& body) {
  int64_t first_of_range = 0;
  int64_t next = blockIdx.x;
  for (int64_t i = 0; i < all.num_ranges; ++i) {
    const int64_t end = first_of_range + count(all.ranges[i]);
    for (; next < end; next += gridDim.x) body(all.ranges[i], next - first_of_range);
    first_of_range = end;
  }
}

__global__ void clear_sums(double* sums, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    sums[i] = 0;
}

__global__ void sum_rows(MatrixRanges all, const float* gradients, double* sums) {
  const auto rows = [](const MatrixRange& range) { return range.num_rows(); };
  for_each_item(all, rows, [&](const MatrixRange& range, int64_t index) {
    const MatrixRange::Row row = range.part_of_row(index);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < row.count; i += blockDim.x) {
      const auto value = static_cast<double>(gradients[row.offset + i]);
      sum += value * value;
    }
    sum = block_sum(sum, shared<WarpSums>());
    if (threadIdx.x == 0) sums[all.matrices[range.matrix].row_sums + row.row] = sum;
  });
}

struct TileSums {
  double of_lane[tile_lanes][tile_cols];
};

__global__ void sum_columns(MatrixRanges all, const float* gradients, double* sums) {
  auto& tile = shared<TileSums>();
  const auto tiles = [](const MatrixRange& range) { return (range.cols + tile_cols - 1) / tile_cols; };
  const int64_t in_tile = threadIdx.x % tile_cols, lane = threadIdx.x / tile_cols;
  for_each_item(all, tiles, [&](const MatrixRange& range, int64_t index) {
    const int64_t col = range.col + index * tile_cols + in_tile;  // column in the matrix
    double sum = 0;
    for (int64_t i = lane; i < range.num_rows(); i += tile_lanes) {
      const MatrixRange::Row row = range.part_of_row(i);
      if (col < row.col || col >= row.col + row.count) continue;
      const auto value = static_cast<double>(gradients[row.offset + col - row.col]);
      sum += value * value;
    }
    tile.of_lane[lane][in_tile] = sum;
    __syncthreads();
    if (lane == 0 && col < range.col + range.cols) {
      double total = 0;
      for (int64_t i = 0; i < tile_lanes; ++i) total += tile.of_lane[i][in_tile];
      sums[all.matrices[range.matrix].col_sums + col] = total;
    }
    __syncthreads();  // until no thread reads the tile
  });
}

// One block per matrix.
__global__ void advance_moments(const FactoredMatrix* matrices, const StepState* state, double beta2_decay, double eps,
                                const double* sums, Moments all) {
  if (state->skip != 0) return;
  const FactoredMatrix matrix = matrices[blockIdx.x];
  const double share = pow(static_cast<double>(state->updates), beta2_decay);
  const double squared_scale = static_cast<double>(state->gradient_scale) * state->gradient_scale;
  const auto advance = [&](float* moments, const double* of_squares, int64_t count, int64_t summed) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
      const double mean = squared_scale * of_squares[i] / static_cast<double>(summed) + eps;
      moments[i] = static_cast<float>((1 - share) * static_cast<double>(moments[i]) + share * mean);
      sum += static_cast<double>(moments[i]);
    }
    return sum;
  };
  const double of_rows = advance(all.rows + matrix.row_moments, sums + matrix.row_sums, matrix.rows, matrix.cols);
  advance(all.cols + matrix.col_moments, sums + matrix.col_sums, matrix.cols, matrix.rows);
  const double total = block_sum(of_rows, shared<WarpSums>());
  if (threadIdx.x == 0) all.means[blockIdx.x] = total / static_cast<double>(matrix.rows);
}

__global__ void divide_by_moments(MatrixRanges all, const StepState* state, Moments moments, float* gradients) {
  if (state->skip != 0) return;
  const auto all_rows = [](const MatrixRange& range) { return range.num_rows(); };
  for_each_item(all, all_rows, [&](const MatrixRange& range, int64_t index) {
    const MatrixRange::Row row = range.part_of_row(index);
    const FactoredMatrix matrix = all.matrices[range.matrix];
    const auto moment = static_cast<double>(moments.rows[matrix.row_moments + row.row]);
    const auto factor =
        static_cast<float>(static_cast<double>(state->gradient_scale) / sqrt(moment / moments.means[range.matrix]));
    const float* const own_cols = moments.cols + matrix.col_moments + row.col;
    for (int64_t i = threadIdx.x; i < row.count; i += blockDim.x)
      gradients[row.offset + i] = gradients[row.offset + i] * factor / sqrtf(own_cols[i]);
  });
}

// The grid has its maximum size, as only the device knows the number of rows.
LaunchShape shape_of(int64_t num_ranges, int64_t shared_bytes) {
  LaunchShape shape = shape_for(num_ranges > 0 ? most_grid_blocks : 1);
  shape.shared_bytes = shared_bytes;
  return shape;
}

template <typename Op>
MatrixRanges ranges_of(const Op& op) {
  return {op.matrices, op.ranges, op.num_ranges};
}

template <typename Op>
Moments moments_of(const Op& op) {
  return {op.rows.template as<float>(), op.cols.template as<float>(), op.means.template as<double>()};
}

}  // namespace

void cuda_run(const FactoredSums& op, Stream stream, std::byte*) {
  auto* const sums = op.sums.as<double>();
  const auto* const gradients = op.gradients.as<const float>();
  launch(stream, shape_for((op.sums.cols + threads - 1) / threads), clear_sums, sums, op.sums.cols);
  launch(stream, shape_of(op.num_ranges, sizeof(WarpSums)), sum_rows, ranges_of(op), gradients, sums);
  LaunchShape tiles = shape_of(op.num_ranges, sizeof(TileSums));
  tiles.threads = tile_cols * tile_lanes;
  launch(stream, tiles, sum_columns, ranges_of(op), gradients, sums);
}

void cuda_run(const FactoredMoments& op, Stream stream, std::byte*) {
  if (op.num_matrices == 0) return;
  launch(stream, {op.num_matrices, threads, sizeof(WarpSums)}, advance_moments, op.matrices, op.state, op.beta2_decay,
         op.eps, op.sums.as<const double>(), moments_of(op));
}

void cuda_run(const FactoredDirection& op, Stream stream, std::byte*) {
  launch(stream, shape_of(op.num_ranges, 0), divide_by_moments, ranges_of(op), op.state, moments_of(op),
         op.gradients.as<float>());
}

}  // namespace gptrain::cuda
