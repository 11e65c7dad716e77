// Sums over the rows of a matrix in two launches: over chunks of rows, then over the chunks.
#include "kernels/column_sums.h"
#include "kernels/rows.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

constexpr int lanes = 32;  // threads on neighbouring columns: a warp reads whole memory lines
constexpr int warps = 8;   // warps on different rows
constexpr unsigned threads = lanes * warps;
constexpr int group = 8;  // rows or partials that a thread loads at once

// Warps of a block that adds partials, of which there may be a thousand: each warp has one or two rounds of loads.
constexpr int partial_warps = 32;

template <int N, int num_warps = warps>
struct WarpSums {
  double of_warp[num_warps][lanes * N];
};

// partials[chunk][column] = sum over the rows of a chunk. A thread takes N columns of every eighth row.
template <typename T, int N>
__global__ void sum_chunks(Rows<const T> values, int64_t rows, int64_t cols, int64_t chunk_rows, float* partials) {
  WarpSums<N>& sums = shared<WarpSums<N>>();
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int warp = static_cast<int>(threadIdx.x) / lanes;
  const int64_t blocks_across = (cols + lanes * N - 1) / (lanes * N);
  const int64_t chunk = blockIdx.x / blocks_across;
  const int64_t first_column = blockIdx.x % blocks_across * (lanes * N);
  const int64_t column = first_column + lane * N;
  const int64_t end = (chunk + 1) * chunk_rows < rows ? (chunk + 1) * chunk_rows : rows;
  double total[N] = {};
  if (column < cols) {
    for (int64_t first = chunk * chunk_rows + warp; first < end; first += group * warps) {
      Pack<T, N> packs[group] = {};
#pragma unroll
      for (int i = 0; i < group; ++i)
        if (first + i * warps < end) packs[i] = load<N>(values.at(first + i * warps, column));
      float sum[N] = {};
#pragma unroll
      for (int i = 0; i < group; ++i)
        for (int j = 0; j < N; ++j) sum[j] += to_float(packs[i].at[j]);
      for (int j = 0; j < N; ++j) total[j] += static_cast<double>(sum[j]);
    }
  }
  for (int j = 0; j < N; ++j) sums.of_warp[warp][lane * N + j] = total[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < lanes * N; i += static_cast<int>(threads)) {
    if (first_column + i >= cols) return;
    double sum = 0;
    for (int w = 0; w < warps; ++w) sum += sums.of_warp[w][i];
    partials[chunk * cols + first_column + i] = static_cast<float>(sum);
  }
}

// A block adds 32 columns; each of its warps takes every 32nd partial.
template <typename Sum>
__global__ void add_partials(PartialSums<Sum> op) {
  auto& sums = shared<WarpSums<1, partial_warps>>();
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int warp = static_cast<int>(threadIdx.x) / lanes;
  const int64_t width = op.more_sums == nullptr ? op.cols : 2 * op.cols;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * lanes + lane;
  double total = 0;
  if (column < width) {
    for (int64_t first = warp; first < op.count; first += group * partial_warps) {
      float partials[group] = {};
#pragma unroll
      for (int i = 0; i < group; ++i)
        if (first + i * partial_warps < op.count)
          partials[i] = op.partials[(first + i * partial_warps) * width + column];
#pragma unroll
      for (int i = 0; i < group; ++i) total += static_cast<double>(partials[i]);
    }
  }
  sums.of_warp[warp][lane] = total;
  __syncthreads();
  if (warp > 0 || column >= width) return;
  Sum& result = column < op.cols ? op.sums[column] : op.more_sums[column - op.cols];
  double sum = op.accumulate ? static_cast<double>(result) : 0.0;
  for (int w = 0; w < partial_warps; ++w) sum += sums.of_warp[w][lane];
  result = static_cast<Sum>(sum);
}

template <typename T, int N>
void launch_sum_chunks(const Matrix& values, Stream stream, float* partials) {
  const int64_t chunk_rows = gpu_column_sum_chunk(values.rows);
  const int64_t chunks = (values.rows + chunk_rows - 1) / chunk_rows;
  const int64_t blocks_across = (values.cols + lanes * N - 1) / (lanes * N);
  launch(stream, {chunks * blocks_across, threads, sizeof(WarpSums<N>)}, sum_chunks<T, N>, Rows<const T>(values),
         values.rows, values.cols, chunk_rows, partials);
}

template <typename Sum>
void launch_add_partials(const PartialSums<Sum>& op, Stream stream) {
  const int64_t width = op.more_sums == nullptr ? op.cols : 2 * op.cols;
  launch(stream, {(width + lanes - 1) / lanes, lanes * partial_warps, sizeof(WarpSums<1, partial_warps>)},
         add_partials<Sum>, op);
}

}  // namespace

void cuda_run(const ColumnSums& op, Stream stream, std::byte* scratch) {
  auto* const partials = reinterpret_cast<float*>(scratch);
  with_type(op.values.dtype, [&](auto type) {
    using T = decltype(type);
    if (in_packs({op.values})) {
      launch_sum_chunks<T, pack_width>(op.values, stream, partials);
    } else {
      launch_sum_chunks<T, 1>(op.values, stream, partials);
    }
  });
  const int64_t chunk_rows = gpu_column_sum_chunk(op.values.rows);
  const int64_t chunks = (op.values.rows + chunk_rows - 1) / chunk_rows;
  if (op.sums.dtype == DType::f64)
    return cuda_run(PartialSums<double>{partials, chunks, op.values.cols, op.sums.as<double>(), nullptr}, stream);
  cuda_run(PartialSums<float>{partials, chunks, op.values.cols, op.sums.as<float>(), nullptr, op.accumulate}, stream);
}

void cuda_run(const PartialSums<float>& op, Stream stream) { launch_add_partials(op, stream); }
void cuda_run(const PartialSums<double>& op, Stream stream) { launch_add_partials(op, stream); }

}  // namespace gptrain::cuda
