// Cross-entropy over the vocabulary. One block per row of the logits: it finds maximum and sum in one pass over memory
// and writes the gradient in a second, which finds most of the row in the cache. The second pass runs backwards, from
// the columns that were read last, and its stores do not displace columns that are still to be read.
#include <algorithm>
#include <limits>

#include "kernels/activation_functions.h"
#include "kernels/rows.h"
#include "kernels/run.h"

namespace gptrain::inline cuda {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
// Threads per block. Two such blocks, at 64 registers a thread, fit a multiprocessor: while one sums, the other loads.
constexpr int64_t most_threads = 512;
constexpr int blocks_at_once = 2;
constexpr int packs_at_once = 2;  // packs that a thread loads at once

// Logits as they are.
struct Uncapped {
  __device__ float value(float logit) const { return logit; }
  __device__ float slope(float) const { return 1.0F; }
};

// cap * tanh(logit / cap) in place of each logit.
struct Softcap {
  float cap, inverse;

  __device__ float value(float logit) const { return cap * tanhf(logit * inverse); }
  // 1 - tanh^2, computed without that form's cancellation.
  __device__ float slope(float logit) const { return 4.0F * sigmoid(2.0F * logit * inverse).slope; }
};

template <typename Body>
void with_cap(double softcap, const Body& body) {
  if (softcap > 0) return body(Softcap{static_cast<float>(softcap), static_cast<float>(1.0 / softcap)});
  body(Uncapped{});
}

// sum: sum of e^(logit - maximum).
template <typename Sum>
struct SoftmaxSums {
  float maximum;
  Sum sum;
};

// Values that thread 0 computes for a row and all threads need for its gradient.
struct GradientTerms {
  float maximum;
  double scale;  // factor of e^(logit - maximum)
  double inverse_tokens;
};

struct BlockSums {
  float maxima[most_threads / 32];
  double sums[most_threads / 32];
  GradientTerms terms;
};

// A thread's packs of a row. All loads are issued before the first value is used, so that they overlap. Columns from
// `cols` on are padding: their values are minus infinity, and packs of padding only are not read.
template <typename L, int N>
class LoadedLogits {
 public:
  __device__ LoadedLogits(const L* logits, int first, int step, int cols) : first_(first), step_(step), cols_(cols) {
#pragma unroll
    for (int p = 0; p < packs_at_once; ++p)
      if (first + p * step < cols) packs_[p] = load<N>(logits + first + p * step);
  }

  __device__ int column(int pack) const { return first_ + pack * step_; }
  // Returns the logit as it is stored.
  __device__ float stored(int pack, int i) const { return to_float(packs_[pack].at[i]); }
  template <typename Cap>
  __device__ void values(int pack, Cap cap, float (&values)[N]) const {
    const int column = this->column(pack);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = cap.value(stored(pack, i));
    if (column + N <= cols_) return;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (column + i >= cols_) values[i] = -infinity;
  }

 private:
  Pack<L, N> packs_[packs_at_once] = {};
  int first_, step_, cols_;
};

// Returns e^(value - shift), where `shift` is a maximum: minus infinity if all values are minus infinity.
__device__ float exponential(float value, float shift) {
  return exp2_of(log2_e * (value - (shift == -infinity ? 0.0F : shift)));
}

// Returns maximum and sum over the thread's columns. When the maximum rises, the earlier sum is rescaled. A NaN never
// becomes the maximum but makes the sum NaN.
template <int N, typename L, typename Cap>
__device__ SoftmaxSums<float> own_sums(const L* logits, int cols, Cap cap) {
  SoftmaxSums<float> own{-infinity, 0};
  const int step = static_cast<int>(blockDim.x) * N;
  for (int first = static_cast<int>(threadIdx.x) * N; first < cols; first += packs_at_once * step) {
    const LoadedLogits<L, N> loaded(logits, first, step, cols);
    float values[packs_at_once][N];
#pragma unroll
    for (int p = 0; p < packs_at_once; ++p) loaded.values(p, cap, values[p]);
    float maximum = own.maximum;
    for (const auto& pack : values)
      for (const float value : pack) maximum = fmaxf(maximum, value);
    own.sum *= exponential(own.maximum, maximum);
    own.maximum = maximum;
    for (const auto& pack : values)
      for (const float value : pack) own.sum += exponential(value, maximum);
  }
  return own;
}

// Combines the sums of the block's threads in a fixed order; result on thread 0.
__device__ SoftmaxSums<double> block_sums(const SoftmaxSums<float>& own, BlockSums& block) {
  const unsigned warp = threadIdx.x / 32;
  const unsigned warps = blockDim.x / 32;
  float maximum = own.maximum;
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
    const float other = __shfl_xor_sync(0xffffffff, maximum, lanes);
    maximum = other > maximum ? other : maximum;
  }
  if (threadIdx.x % 32 == 0) block.maxima[warp] = maximum;
  __syncthreads();
  for (unsigned i = 0; i < warps; ++i) maximum = block.maxima[i] > maximum ? block.maxima[i] : maximum;
  double sum = static_cast<double>(own.sum * exponential(own.maximum, maximum));
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  if (threadIdx.x % 32 == 0) block.sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return {maximum, 0};
  double total = 0;
  for (unsigned i = 0; i < warps; ++i) total += block.sums[i];
  return {maximum, total};
}

// One rank's slice of the vocabulary.
struct Slice {
  int64_t vocab_size, first_token;
  int cols;       // columns of the logits, padding included
  int true_cols;  // columns without padding

  Slice(int64_t vocab_size_, int64_t first_token_, int64_t cols_)
      : vocab_size(vocab_size_),
        first_token(first_token_),
        cols(static_cast<int>(cols_)),
        true_cols(static_cast<int>(std::clamp<int64_t>(vocab_size_ - first_token_, 0, cols_))) {}
  // Returns the column of a token, -1 if it is not in the slice.
  __device__ int column_of(int32_t token) const {
    const int64_t column = token - first_token;
    return token >= 0 && column >= 0 && column < true_cols ? static_cast<int>(column) : -1;
  }
};

template <typename L, int N, typename Cap>
__global__ void __launch_bounds__(most_threads, blocks_at_once)
    cross_entropy_statistics(Rows<const L> logits, const int32_t* targets, Rows<float> statistics, Slice slice,
                             Cap cap) {
  const int64_t row = blockIdx.x;
  const L* const in = logits.at(row, 0);
  const auto sums = block_sums(own_sums<N>(in, slice.true_cols, cap), shared<BlockSums>());
  if (threadIdx.x > 0) return;
  const int target = slice.column_of(targets[row]);
  *statistics.at(0, row) = sums.maximum;
  *statistics.at(1, row) = static_cast<float>(sums.sum);
  *statistics.at(2, row) = target >= 0 ? cap.value(to_float(in[target])) : 0.0F;
}

// Combines the statistics of slices, in order, into those of the whole row.
struct AllSlices {
  Rows<const float> statistics;  // null data: the logits are whole
  int64_t count;

  __device__ SoftmaxSums<double> sums(int64_t row) const {
    SoftmaxSums<double> whole{-infinity, 0};
    for (int64_t i = 0; i < count; ++i) {
      const float maximum = *statistics.at(3 * i, row);
      whole.maximum = maximum > whole.maximum ? maximum : whole.maximum;
    }
    for (int64_t i = 0; i < count; ++i) {
      const double sum = static_cast<double>(*statistics.at(3 * i + 1, row));
      // Skips slices of padding, whose maximum is minus infinity: infinity - infinity would give NaN. A NaN sum is
      // kept.
      if (sum != 0) whole.sum += sum * static_cast<double>(expf(*statistics.at(3 * i, row) - whole.maximum));
    }
    return whole;
  }
  __device__ double target_logit(int64_t row) const {
    double logit = 0;
    for (int64_t i = 0; i < count; ++i) logit += static_cast<double>(*statistics.at(3 * i + 2, row));
    return logit;
  }
};

template <typename L, typename C>
struct LossOperands {
  Rows<const L> logits;
  Rows<C> d_logits;  // null data: losses only
  const int32_t* targets;
  const StepState* state;
  float* losses;
  double z_loss;
};

template <int N, typename C>
__device__ void clear_row(C* row, int cols) {
  for (int column = static_cast<int>(threadIdx.x) * N; column < cols; column += static_cast<int>(blockDim.x) * N)
    store(row + column, Pack<C, N>{});
}

// Computes the gradients, without a cap's slope, of N columns that include the target or padding.
template <int N>
__device__ void mixed_gradients(const float (&values)[N], int column, int true_cols, int target,
                                const GradientTerms& terms, float (&gradients)[N]) {
  for (int i = 0; i < N; ++i) {
    double gradient = static_cast<double>(exponential(values[i], terms.maximum)) * terms.scale;
    if (column + i == target) gradient -= terms.inverse_tokens;
    // Keeps an infinite or NaN scale away from the padding.
    gradients[i] = column + i < true_cols ? static_cast<float>(gradient) : 0.0F;
  }
}

// Stores values that the kernel does not read again: they leave the cache first.
template <int N, typename T>
__device__ void store_once(T* to, const Pack<T, N>& values) {
#ifdef __CUDACC__
  if constexpr (sizeof(values) % 16 == 0) {
#pragma unroll
    for (size_t i = 0; i < sizeof(values) / 16; ++i)
      __stcs(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(&values)[i]);
    return;
  }
#endif
  store(to, values);
}

// Writes d/dlogit of (lse - target logit + z lse^2) = p (1 + 2 z lse) - [target], times the slope of a cap. The
// gradient may overwrite the logits: a thread writes only elements that it alone has read.
template <int N, typename L, typename C, typename Cap>
__device__ void write_gradient(const L* logits, C* d_logits, const Slice& slice, int target, GradientTerms terms,
                               Cap cap) {
  const auto scale = static_cast<float>(terms.scale);
  const int step = static_cast<int>(blockDim.x) * N, round = packs_at_once * step;
  const int own = static_cast<int>(threadIdx.x) * N;
  const int last = own < slice.cols ? own + (slice.cols - 1 - own) / round * round : -1;
  for (int first = last; first >= 0; first -= round) {
    const LoadedLogits<L, N> loaded(logits, first, step, slice.true_cols);
#pragma unroll
    for (int p = 0; p < packs_at_once; ++p) {
      const int column = loaded.column(p);
      if (column >= slice.cols) continue;
      float values[N], gradients[N];
      loaded.values(p, cap, values);
      const bool has_target = target >= column && target < column + N;
      if (has_target || column + N > slice.true_cols) {
        mixed_gradients(values, column, slice.true_cols, target, terms, gradients);
      } else {
        for (int i = 0; i < N; ++i) gradients[i] = exponential(values[i], terms.maximum) * scale;
      }
      Pack<C, N> out;
      for (int i = 0; i < N; ++i) {
        const float logit = column + i < slice.true_cols ? loaded.stored(p, i) : 0.0F;
        out.at[i] = rounded_to<C>(gradients[i] * cap.slope(logit));
      }
      store_once(d_logits + column, out);
    }
  }
}

template <typename L, typename C, int N, typename Cap>
__global__ void __launch_bounds__(most_threads, blocks_at_once)
    cross_entropy(LossOperands<L, C> op, AllSlices slices, Slice slice, Cap cap) {
  BlockSums& block = shared<BlockSums>();
  const int64_t row = blockIdx.x;
  const L* const logits = op.logits.at(row, 0);
  const int32_t token = op.targets[row];
  if (token < 0) {
    if (threadIdx.x == 0) op.losses[row] = 0;
    if (op.d_logits.data != nullptr) clear_row<N>(op.d_logits.at(row, 0), slice.cols);
    return;
  }
  const int target = slice.column_of(token);
  SoftmaxSums<double> sums{-infinity, 0};
  if (slices.statistics.data == nullptr) sums = block_sums(own_sums<N>(logits, slice.true_cols, cap), block);
  if (threadIdx.x == 0) {
    double target_logit = std::numeric_limits<double>::quiet_NaN();  // for a token outside the vocabulary
    if (slices.statistics.data != nullptr) {
      sums = slices.sums(row);
      if (token < slice.vocab_size) target_logit = slices.target_logit(row);
    } else if (target >= 0) {
      target_logit = static_cast<double>(cap.value(to_float(logits[target])));
    }
    const auto maximum = static_cast<double>(sums.maximum);
    const double log_sum = log(sums.sum);
    op.losses[row] = static_cast<float>(log_sum - (target_logit - maximum));
    const double inverse_tokens =
        static_cast<double>(op.state->inverse_tokens) * static_cast<double>(op.state->loss_scale.value);
    const double slope = 1.0 + 2.0 * op.z_loss * (maximum + log_sum);
    block.terms = {sums.maximum, slope * inverse_tokens / sums.sum, inverse_tokens};
  }
  if (op.d_logits.data == nullptr) return;
  __syncthreads();
  write_gradient<N>(logits, op.d_logits.at(row, 0), slice, target, block.terms, cap);
}

constexpr int64_t threads_of_losses = 1024;

struct WarpSums {
  double of_warp[threads_of_losses / 32];
};

static_assert(threads_of_losses / 32 == 32);

// One block. A thread adds every 1024th loss in order, and the threads' sums are added in a fixed order: reproducible,
// and as accurate as f64.
__global__ void __launch_bounds__(threads_of_losses)
    accumulate_loss(const float* losses, int64_t count, StepState* state) {
  WarpSums& sums = shared<WarpSums>();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += static_cast<double>(losses[i]);
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  if (threadIdx.x % 32 == 0) sums.of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  double total = sums.of_warp[threadIdx.x];
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) total += __shfl_xor_sync(0xffffffff, total, lanes);
  if (threadIdx.x == 0) state->loss_sum += total;
}

LaunchShape shape_of_rows(const Matrix& logits, int width) {
  const int64_t steps = (logits.cols / width + packs_at_once - 1) / packs_at_once;
  return {logits.rows, static_cast<unsigned>(std::min((steps + 31) / 32 * 32, most_threads)), sizeof(BlockSums)};
}

}  // namespace

// A target past the vocabulary, which a device cannot report, gives a loss that is not a number, so that the step is
// skipped.
void cuda_run(const CrossEntropyStatistics& op, Stream stream, std::byte*) {
  with_type(op.logits.dtype, [&](auto type) {
    with_cap(op.softcap, [&](auto cap) {
      using L = decltype(type);
      using Cap = decltype(cap);
      const auto start = [&](auto* kernel, int width) {
        launch(stream, shape_of_rows(op.logits, width), kernel, Rows<const L>(op.logits), op.targets,
               Rows<float>(op.statistics), Slice(op.vocab_size, op.first_token, op.logits.cols), cap);
      };
      if (in_packs({op.logits})) return start(cross_entropy_statistics<L, pack_width, Cap>, pack_width);
      start(cross_entropy_statistics<L, 1, Cap>, 1);
    });
  });
}

void cuda_run(const CrossEntropy& op, Stream stream, std::byte*) {
  // The kernel without gradients is the one whose gradients would have the logits' type.
  const DType gradients = op.d_logits.given() ? op.d_logits.dtype : op.logits.dtype;
  with_type(op.logits.dtype, [&](auto logits_type) {
    with_type_beside(logits_type, gradients, [&](auto compute) {
      using L = decltype(logits_type);
      using C = decltype(compute);
      const LossOperands<L, C> operands{
          Rows<const L>(op.logits), Rows<C>(op.d_logits), op.targets, op.state, op.losses.as<float>(), op.z_loss};
      const AllSlices slices{Rows<const float>(op.statistics), op.statistics.rows / 3};
      with_cap(op.softcap, [&](auto cap) {
        using Cap = decltype(cap);
        const auto start = [&](auto* kernel, int width) {
          launch(stream, shape_of_rows(op.logits, width), kernel, operands, slices,
                 Slice(op.vocab_size, op.first_token, op.logits.cols), cap);
        };
        if (in_packs({op.logits, op.d_logits})) return start(cross_entropy<L, C, pack_width, Cap>, pack_width);
        start(cross_entropy<L, C, 1, Cap>, 1);
      });
    });
  });
}

void cuda_run(const AccumulateLoss& op, Stream stream, std::byte*) {
  launch(stream, {1, threads_of_losses, sizeof(WarpSums)}, accumulate_loss, op.losses.as<const float>(), op.losses.cols,
         op.state);
}

}  // namespace gptrain::cuda
