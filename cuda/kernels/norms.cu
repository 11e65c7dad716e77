// LayerNorm and RMSNorm. A block holds a row in registers, so that memory is read and written once. A thread has the
// same columns in all rows of its block, so that it can sum them for the parameters' gradients. Rows too long for
// registers are read again from the cache in each pass, and a separate kernel sums their parameter gradients.
#include <algorithm>
#include <type_traits>

#include "kernels/amax.h"
#include "kernels/column_sums.h"
#include "kernels/rows.h"
#include "kernels/run.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

constexpr int64_t most_threads = 512;
static_assert(gpu_norm_most_blocks <= amax_parts);

// A block's threads divide a row's columns into packs of N, at most P per thread. A row too long for P = 2 has P = 0:
// the threads read it again in each pass.
constexpr int long_row = 0;

unsigned threads_of_row(int64_t cols, int width, int packs_per_thread) {
  if (packs_per_thread == long_row) return most_threads;
  const int64_t needed = (cols / width + packs_per_thread - 1) / packs_per_thread;
  return static_cast<unsigned>((needed + 31) / 32 * 32);
}

// Packs of a row that a thread holds (at least 1, for array sizes).
template <int P>
constexpr int held = P == long_row ? 1 : P;

struct TwoSums {
  float of_warp[2][32];
};

// Sums a and b over the block, in a fixed order; results on every thread.
__device__ void block_sums(float& a, float& b) {
  TwoSums& sums = shared<TwoSums>();
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) {
    a += __shfl_xor_sync(0xffffffff, a, lanes);
    b += __shfl_xor_sync(0xffffffff, b, lanes);
  }
  const unsigned warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    sums.of_warp[0][warp] = a;
    sums.of_warp[1][warp] = b;
  }
  __syncthreads();
  a = 0;
  b = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) {
    a += sums.of_warp[0][i];
    b += sums.of_warp[1][i];
  }
  __syncthreads();  // until no thread reads the sums
}

// Calls body(index in the thread's registers, column) for the thread's packs of a row.
template <int N, int P, typename Body>
__device__ void for_own_packs(int64_t packs, const Body& body) {
  if constexpr (P == long_row) {
    for (int64_t pack = threadIdx.x; pack < packs; pack += blockDim.x) body(0, pack * N);
  } else {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int64_t pack = p * static_cast<int64_t>(blockDim.x) + threadIdx.x;
      if (pack < packs) body(p, pack * N);
    }
  }
}

// A row of parameters. A thread reads its packs once for all rows.
template <int N, int P>
class OwnParameters {
 public:
  __device__ OwnParameters(const float* row, int64_t packs) : row_(row) {
    if constexpr (P != long_row) {
      if (row != nullptr) for_own_packs<N, P>(packs, [&](int p, int64_t column) { packs_[p] = load<N>(row + column); });
    }
  }

  // Returns zeros if there is no row.
  __device__ Pack<float, N> at(int p, int64_t column) const {
    if constexpr (P != long_row) {
      return packs_[p];
    } else {
      return row_ == nullptr ? Pack<float, N>{} : load<N>(row_ + column);
    }
  }

 private:
  const float* row_;
  Pack<float, N> packs_[held<P>] = {};
};

template <typename R, typename C>
struct ForwardOperands {
  Rows<const R> x;
  Rows<const C> branch;  // null data: no branch
  Rows<R> x_out;
  Rows<C> y;
  const float *gamma, *beta;
  float *mean, *rstd;
  float eps;
  int64_t rows, cols;
  float* amax;   // amax parts of y; null: not requested
  float offset;  // added to gamma
};
static_assert(sizeof(WarpMaxima) <= sizeof(TwoSums));

// Computes x, or the sum of x and the branch if there is one. A thread reads back only elements that it stored.
template <int N, typename R, typename C>
__device__ void add_branch(const ForwardOperands<R, C>& op, const DropoutMask& dropout, int64_t row, int64_t column,
                           const Pack<R, N>& x, const Pack<C, N>& branch, float (&values)[N]) {
  for (int i = 0; i < N; ++i) values[i] = to_float(x.at[i]);
  if (op.branch.data == nullptr) return;
  float added[N];
  for (int i = 0; i < N; ++i) added[i] = to_float(branch.at[i]);
  dropout.apply(row, column, added);
  Pack<R, N> out;
  for (int i = 0; i < N; ++i) {
    out.at[i] = rounded_to<R>(values[i] + added[i]);
    values[i] = to_float(out.at[i]);
  }
  store(op.x_out.at(row, column), out);
}

template <typename R, typename C, int N, int P>
__global__ void __launch_bounds__(most_threads)
    norm_forward(ForwardOperands<R, C> op, DropoutMask dropout, bool centred) {
  const int64_t packs = op.cols / N;
  const float inverse_cols = 1.0F / static_cast<float>(op.cols);
  const OwnParameters<N, P> gamma(op.gamma, packs), beta(op.beta, packs);
  RunningAmax amax(op.amax);
  for (int64_t row = blockIdx.x; row < op.rows; row += gridDim.x) {
    float held_values[held<P>][N] = {};
    float sum = 0, squares = 0;
    const auto take = [&](int p, int64_t column, const Pack<R, N>& x, const Pack<C, N>& branch) {
      add_branch(op, dropout, row, column, x, branch, held_values[p]);
      for (int i = 0; i < N; ++i) sum += held_values[p][i];
    };
    if constexpr (P == long_row) {
      for_own_packs<N, P>(packs, [&](int p, int64_t column) {
        const auto x = load<N>(op.x.at(row, column));
        take(p, column, x, op.branch.data == nullptr ? Pack<C, N>{} : load<N>(op.branch.at(row, column)));
      });
    } else {
      // Loads the whole row before using any of it, so that the loads overlap.
      Pack<R, N> x[P] = {};
      Pack<C, N> branch[P] = {};
      for_own_packs<N, P>(packs, [&](int p, int64_t column) {
        x[p] = load<N>(op.x.at(row, column));
        if (op.branch.data != nullptr) branch[p] = load<N>(op.branch.at(row, column));
      });
      for_own_packs<N, P>(packs, [&](int p, int64_t column) { take(p, column, x[p], branch[p]); });
    }
    // Calls body with the values to normalise.
    const auto with_values = [&](int p, int64_t column, const auto& body) {
      if constexpr (P != long_row) {
        body(held_values[p]);
      } else {
        const auto x = op.branch.data == nullptr ? load<N>(op.x.at(row, column)) : load<N>(op.x_out.at(row, column));
        float values[N];
        for (int i = 0; i < N; ++i) values[i] = to_float(x.at[i]);
        body(values);
      }
    };
    float mean = 0;
    if (centred) {
      block_sums(sum, squares);
      mean = sum * inverse_cols;
    }
    // The mean has been rounded; the remaining offset is computed in the same pass as the squares. The offset matters
    // if x is far from zero.
    float centred_squares = 0, rest = 0;
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      with_values(p, column, [&](const float(&values)[N]) {
        for (int i = 0; i < N; ++i) {
          const float from_mean = values[i] - mean;
          centred_squares += from_mean * from_mean;
          rest += from_mean;
        }
      });
    });
    block_sums(centred_squares, rest);
    rest = centred ? rest * inverse_cols : 0.0F;
    mean += rest;
    const float rstd = 1.0F / sqrtf(centred_squares * inverse_cols - rest * rest + op.eps);
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      const Pack<float, N> scale = gamma.at(p, column), shift = beta.at(p, column);
      Pack<C, N> y;
      with_values(p, column, [&](const float(&values)[N]) {
        for (int i = 0; i < N; ++i)
          y.at[i] = rounded_to<C>((values[i] - mean) * rstd * (op.offset + scale.at[i]) + shift.at[i]);
      });
      store(op.y.at(row, column), y);
      amax.see(y);
    });
    if (threadIdx.x == 0) {
      if (centred) op.mean[row] = mean;
      op.rstd[row] = rstd;
    }
  }
  amax.leave();
}

template <typename R, typename C>
struct BackwardOperands {
  Rows<const C> dy;
  Rows<const R> x, dx_residual;  // null data: zero
  Rows<R> dx;
  const float *gamma, *mean, *rstd;
  float* partials;  // [blocks, 2, cols] for d_gamma and d_beta, or [blocks, cols]
  bool has_beta;
  int64_t rows, cols;
  float* amax;   // amax parts of dx; null: not requested
  float offset;  // added to gamma
};

template <int N>
__device__ void store_sums(float* to, const float (&sums)[N]) {
  Pack<float, N> pack;
  for (int i = 0; i < N; ++i) pack.at[i] = sums[i];
  store(to, pack);
}

// x_hat of one element, and the loss gradient with respect to it.
struct Slope {
  float normed, slope;

  __device__ Slope(float x, float gradient, float gamma, float mean, float rstd)
      : normed((x - mean) * rstd), slope(gradient * gamma) {}
};

// For long rows computes dx only.
template <typename R, typename C, int N, int P>
__global__ void __launch_bounds__(most_threads) norm_backward(BackwardOperands<R, C> op, bool centred) {
  const int64_t packs = op.cols / N;
  const float inverse_cols = 1.0F / static_cast<float>(op.cols);
  float d_gamma[held<P>][N] = {}, d_beta[held<P>][N] = {};
  RunningAmax amax(op.amax);
  for (int64_t row = blockIdx.x; row < op.rows; row += gridDim.x) {
    const float mean = centred ? op.mean[row] : 0.0F;
    const float rstd = op.rstd[row];
    float normed[held<P>][N] = {}, slope[held<P>][N] = {};
    Pack<R, N> residual[held<P>] = {};  // loads while the block sums
    float sum = 0, product = 0;
    const auto read = [&](int p, int64_t column, const auto& body) {
      const auto x = load<N>(op.x.at(row, column));
      const auto dy = load<N>(op.dy.at(row, column));
      const auto gamma = load<N>(op.gamma + column);
      for (int i = 0; i < N; ++i) {
        const float gradient = to_float(dy.at[i]);
        const Slope own(to_float(x.at[i]), gradient, op.offset + gamma.at[i], mean, rstd);
        normed[p][i] = own.normed;
        slope[p][i] = own.slope;
        body(i, gradient);
      }
    };
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      if (P != long_row && op.dx_residual.data != nullptr) residual[p] = load<N>(op.dx_residual.at(row, column));
      read(p, column, [&](int i, float gradient) {
        if constexpr (P != long_row) {
          d_gamma[p][i] += gradient * normed[p][i];
          d_beta[p][i] += gradient;
        }
        sum += slope[p][i];
        product += slope[p][i] * normed[p][i];
      });
    });
    block_sums(sum, product);
    const float mean_slope = centred ? sum * inverse_cols : 0.0F;
    const float mean_product = product * inverse_cols;
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      if constexpr (P == long_row) {
        read(p, column, [](int, float) {});
        residual[p] = op.dx_residual.data == nullptr ? Pack<R, N>{} : load<N>(op.dx_residual.at(row, column));
      }
      Pack<R, N> dx;
      for (int i = 0; i < N; ++i) {
        const float own = rstd * (slope[p][i] - mean_slope - normed[p][i] * mean_product);
        dx.at[i] = rounded_to<R>(to_float(residual[p].at[i]) + own);
      }
      store(op.dx.at(row, column), dx);
      amax.see(dx);
    });
  }
  if constexpr (P != long_row) {
    float* const partials = op.partials + static_cast<int64_t>(blockIdx.x) * (op.has_beta ? 2 : 1) * op.cols;
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      store_sums(partials + column, d_gamma[p]);
      if (op.has_beta) store_sums(partials + op.cols + column, d_beta[p]);
    });
  }
  amax.leave();
}

constexpr unsigned sum_threads = 256;

// Parameter gradients of long rows: partial sums per chunk of rows, with N columns per thread.
template <typename R, typename C, int N>
__global__ void __launch_bounds__(sum_threads)
    norm_parameter_sums(BackwardOperands<R, C> op, bool centred, int64_t chunk_rows) {
  const int64_t packs = op.cols / N;
  const int64_t blocks_across = (packs + sum_threads - 1) / sum_threads;
  const int64_t chunk = blockIdx.x / blocks_across;
  const int64_t pack = blockIdx.x % blocks_across * sum_threads + threadIdx.x;
  if (pack >= packs) return;
  const int64_t column = pack * N;
  const int64_t end = (chunk + 1) * chunk_rows < op.rows ? (chunk + 1) * chunk_rows : op.rows;
  float d_gamma[N] = {}, d_beta[N] = {};
  for (int64_t row = chunk * chunk_rows; row < end; ++row) {
    const auto x = load<N>(op.x.at(row, column));
    const auto dy = load<N>(op.dy.at(row, column));
    const float mean = centred ? op.mean[row] : 0.0F;
    const float rstd = op.rstd[row];
    for (int i = 0; i < N; ++i) {
      const float gradient = to_float(dy.at[i]);
      d_gamma[i] += gradient * ((to_float(x.at[i]) - mean) * rstd);
      d_beta[i] += gradient;
    }
  }
  float* const partials = op.partials + chunk * (op.has_beta ? 2 : 1) * op.cols;
  store_sums(partials + column, d_gamma);
  if (op.has_beta) store_sums(partials + op.cols + column, d_beta);
}

// Calls body(pack width, packs per thread) with constants.
template <typename Body>
void with_row_shape(int64_t cols, bool packs, const Body& body) {
  const auto with_width = [&](auto width) {
    const int64_t in_packs = cols / decltype(width)::value;
    if (in_packs <= most_threads) return body(width, std::integral_constant<int, 1>{});
    if (in_packs <= 2 * most_threads) return body(width, std::integral_constant<int, 2>{});
    body(width, std::integral_constant<int, long_row>{});
  };
  if (packs) return with_width(std::integral_constant<int, pack_width>{});
  with_width(std::integral_constant<int, 1>{});
}

}  // namespace

void cuda_run(const NormForward& op, Stream stream, std::byte*) {
  with_type(op.x.dtype, [&](auto residual) {
    with_type_beside(residual, op.y.dtype, [&](auto compute) {
      using R = decltype(residual);
      using C = decltype(compute);
      const ForwardOperands<R, C> operands{Rows<const R>(op.x),
                                           Rows<const C>(op.branch),
                                           Rows<R>(op.x_out),
                                           Rows<C>(op.y),
                                           op.gamma.as<const float>(),
                                           op.beta.as<const float>(),
                                           op.mean.as<float>(),
                                           op.rstd.as<float>(),
                                           static_cast<float>(op.eps),
                                           op.x.rows,
                                           op.x.cols,
                                           op.amax.as<float>(),
                                           op.offset ? 1.0F : 0.0F};
      const bool packs = in_packs({op.x, op.branch, op.x_out, op.gamma, op.beta, op.y});
      with_row_shape(op.x.cols, packs, [&](auto width, auto per_thread) {
        constexpr int n = decltype(width)::value;
        constexpr int p = decltype(per_thread)::value;
        // The grid has the blocks that run at a time, each of which takes many rows, so that it reads the parameters
        // once.
        LaunchShape shape{0, threads_of_row(op.x.cols, n, p), sizeof(TwoSums)};
        shape.blocks = std::min({op.x.rows, resident_blocks(norm_forward<R, C, n, p>, shape), amax_parts});
        launch(stream, shape, norm_forward<R, C, n, p>, operands, DropoutMask(op.dropout, op.token_rows),
               op.kind == NormKind::layernorm);
      });
    });
  });
}

void cuda_run(const NormBackward& op, Stream stream, std::byte* scratch) {
  auto* const partials = reinterpret_cast<float*>(scratch);
  const int64_t blocks = gpu_norm_blocks(op.x.rows, op.x.cols);
  with_type(op.x.dtype, [&](auto residual) {
    with_type_beside(residual, op.dy.dtype, [&](auto compute) {
      using R = decltype(residual);
      using C = decltype(compute);
      const BackwardOperands<R, C> operands{Rows<const C>(op.dy),
                                            Rows<const R>(op.x),
                                            Rows<const R>(op.dx_residual),
                                            Rows<R>(op.dx),
                                            op.gamma.as<const float>(),
                                            op.mean.as<const float>(),
                                            op.rstd.as<const float>(),
                                            partials,
                                            op.beta_sums.given(),
                                            op.x.rows,
                                            op.x.cols,
                                            op.amax.as<float>(),
                                            op.offset ? 1.0F : 0.0F};
      const bool packs = in_packs({op.dy, op.x, op.gamma, op.dx_residual, op.dx});
      with_row_shape(op.x.cols, packs, [&](auto width, auto per_thread) {
        constexpr int n = decltype(width)::value;
        constexpr int p = decltype(per_thread)::value;
        const bool centred = op.kind == NormKind::layernorm;
        launch(stream, {blocks, threads_of_row(op.x.cols, n, p), sizeof(TwoSums)}, norm_backward<R, C, n, p>, operands,
               centred);
        if constexpr (p == long_row) {
          const int64_t blocks_across = (op.x.cols / n + sum_threads - 1) / sum_threads;
          launch(stream, {blocks * blocks_across, sum_threads, 0}, norm_parameter_sums<R, C, n>, operands, centred,
                 (op.x.rows + blocks - 1) / blocks);
        }
      });
    });
  });
  cuda_run(PartialSums<double>{partials, blocks, op.x.cols, op.gamma_sums.as<double>(), op.beta_sums.as<double>()},
           stream);
}

}  // namespace gptrain::cuda
