// Reduction over ranks, in rank order; 16-bit numbers are summed in f32 and rounded once.
#include <algorithm>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/rank_sum.h"
#include "kernels/values.h"
#include "launch.h"

namespace gptrain::inline cuda {
namespace {

__device__ inline float widened(bf16 value) { return to_float(value); }
__device__ inline float widened(f16 value) { return to_float(value); }
__device__ inline float widened(float value) { return value; }
__device__ inline double widened(double value) { return value; }
__device__ inline int32_t widened(int32_t value) { return value; }
__device__ inline int64_t widened(int64_t value) { return value; }

template <typename T, typename Wide>
__device__ T narrowed(Wide value) {
  if constexpr (std::is_same_v<Wide, float>) {
    return rounded_to<T>(value);
  } else {
    return value;
  }
}

__device__ inline float sum_of(float a, float b) { return a + b; }
__device__ inline double sum_of(double a, double b) { return a + b; }
// Integers wrap around.
__device__ inline int32_t sum_of(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
__device__ inline int64_t sum_of(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

template <ReduceOp op, typename T>
__device__ T combined(T a, T b) {
  if constexpr (op == ReduceOp::sum) {
    return sum_of(a, b);
  } else {
    const bool keep = op == ReduceOp::max ? a > b : a < b;
    return keep || a != a ? a : b;  // a NaN of any rank remains
  }
}

// A thread takes N neighbours at a time.
template <typename T, ReduceOp op, int N>
__global__ void reduce_ranks(const T* own, const T* received, int rank, int size, T* out, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x * N;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N; first < count;
       first += step) {
    const auto of_rank = [&](int r) { return load<N>((r == rank ? own : received + r * count) + first); };
    decltype(widened(T{})) totals[N];
    const auto of_first = of_rank(0);
    for (int i = 0; i < N; ++i) totals[i] = widened(of_first.at[i]);
    for (int r = 1; r < size; ++r) {
      const auto of_next = of_rank(r);
      for (int i = 0; i < N; ++i) totals[i] = combined<op>(totals[i], widened(of_next.at[i]));
    }
    Pack<T, N> reduced;
    for (int i = 0; i < N; ++i) reduced.at[i] = narrowed<T>(totals[i]);
    store(out + first, reduced);
  }
}

template <typename T, ReduceOp op>
void launch_reduce(const RankSum& sum, Stream stream) {
  constexpr unsigned threads = 256;
  constexpr int64_t most_blocks = 1024;
  constexpr int width = 16 / sizeof(T);
  const auto is_whole = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool packs = sum.count % width == 0 && is_whole(sum.own) && is_whole(sum.received) && is_whole(sum.out);
  const auto start = [&](auto* kernel, int64_t at_once) {
    const int64_t blocks = std::min((sum.count / at_once + threads - 1) / threads, most_blocks);
    launch(stream, {blocks, threads, 0}, kernel, static_cast<const T*>(sum.own), static_cast<const T*>(sum.received),
           sum.rank, sum.size, static_cast<T*>(sum.out), sum.count);
  };
  if (packs) return start(reduce_ranks<T, op, width>, width);
  start(reduce_ranks<T, op, 1>, 1);
}

template <typename T>
void launch_type(const RankSum& sum, Stream stream) {
  if (sum.op == ReduceOp::sum) launch_reduce<T, ReduceOp::sum>(sum, stream);
  if (sum.op == ReduceOp::max) launch_reduce<T, ReduceOp::max>(sum, stream);
  if (sum.op == ReduceOp::min) launch_reduce<T, ReduceOp::min>(sum, stream);
}

}  // namespace

void cuda_run(const RankSum& sum, Stream stream) {
  if (sum.count == 0) return;
  if (sum.dtype == DType::f32) launch_type<float>(sum, stream);
  if (sum.dtype == DType::bf16) launch_type<bf16>(sum, stream);
  if (sum.dtype == DType::f16) launch_type<f16>(sum, stream);
  if (sum.dtype == DType::f64) launch_type<double>(sum, stream);
  if (sum.dtype == DType::i32) launch_type<int32_t>(sum, stream);
  if (sum.dtype == DType::i64) launch_type<int64_t>(sum, stream);
}

}  // namespace gptrain::cuda
