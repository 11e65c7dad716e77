// LayerNorm and RMSNorm. A block has a row in its registers, so that memory is read and written once; a thread keeps
// the same columns of all rows that its block takes, so that it can sum them for the parameters' gradients.
#include <stdexcept>

#include "kernels/amax.h"
#include "kernels/column_sums.h"
#include "kernels/norms.h"
#include "kernels/rows.h"
#include "ops/gpu_scratch.h"

namespace gptrain {
namespace {

constexpr int64_t most_threads = 512;
constexpr int64_t forward_blocks = 2112;
static_assert(forward_blocks <= amax_parts && gpu_norm_most_blocks <= amax_parts);

// How a row of h columns is shared by a block's threads: packs of N columns, at most P to a thread.
struct RowShape {
  int64_t packs;
  unsigned threads;

  RowShape(int64_t cols, int width, int packs_per_thread) : packs(cols / width) {
    const int64_t needed = (packs + packs_per_thread - 1) / packs_per_thread;
    threads = static_cast<unsigned>((needed + 31) / 32 * 32);
  }
};

struct TwoSums {
  float of_warp[2][32];
};

// Both sums over the block, on every thread; the same order every time.
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
  __syncthreads();  // before the next sums are written
}

// Calls body(place in the thread's registers, column) for the thread's packs of a row.
template <int N, int P, typename Body>
__device__ void for_own_packs(int64_t packs, const Body& body) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int64_t pack = p * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    if (pack < packs) body(p, pack * N);
  }
}

template <typename R, typename C>
struct ForwardOperands {
  Rows<const R> x;
  Rows<const C> branch;  // null data: none
  Rows<R> x_out;
  Rows<C> y;
  const float *gamma, *beta;
  float *mean, *rstd;
  float eps;
  int64_t rows, cols;
  float* amax;  // of y, or null
};
static_assert(sizeof(WarpMaxima) <= sizeof(TwoSums));

template <typename R, typename C, int N, int P>
__global__ void __launch_bounds__(most_threads)
    norm_forward(ForwardOperands<R, C> op, DropoutMask dropout, bool centred) {
  const int64_t packs = op.cols / N;
  const float inverse_cols = 1.0F / static_cast<float>(op.cols);
  RunningAmax amax(op.amax);
  for (int64_t row = blockIdx.x; row < op.rows; row += gridDim.x) {
    float values[P][N] = {};
    float sum = 0, squares = 0;
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      const auto x = load<N>(op.x.at(row, column));
      for (int i = 0; i < N; ++i) values[p][i] = to_float(x.at[i]);
      if (op.branch.data != nullptr) {
        const auto branch = load<N>(op.branch.at(row, column));
        float added[N];
        for (int i = 0; i < N; ++i) added[i] = to_float(branch.at[i]);
        dropout.apply(row, column, added);
        Pack<R, N> out;
        for (int i = 0; i < N; ++i) {
          out.at[i] = rounded_to<R>(values[p][i] + added[i]);
          values[p][i] = to_float(out.at[i]);
        }
        store(op.x_out.at(row, column), out);
      }
      for (int i = 0; i < N; ++i) sum += values[p][i];
    });
    float mean = 0;
    if (centred) {
      block_sums(sum, squares);
      mean = sum * inverse_cols;
    }
    // The mean has been rounded: what that leaves over is found in the same pass as the squares. Where x is far from
    // zero it matters.
    float centred_squares = 0, rest = 0;
    for_own_packs<N, P>(packs, [&](int p, int64_t) {
      for (int i = 0; i < N; ++i) {
        const float from_mean = values[p][i] - mean;
        centred_squares += from_mean * from_mean;
        rest += from_mean;
      }
    });
    block_sums(centred_squares, rest);
    rest = centred ? rest * inverse_cols : 0.0F;
    mean += rest;
    const float rstd = 1.0F / sqrtf(centred_squares * inverse_cols - rest * rest + op.eps);
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      const auto gamma = load<N>(op.gamma + column);
      Pack<float, N> shift{};
      if (op.beta != nullptr) shift = load<N>(op.beta + column);
      Pack<C, N> y;
      for (int i = 0; i < N; ++i) y.at[i] = rounded_to<C>((values[p][i] - mean) * rstd * gamma.at[i] + shift.at[i]);
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
  float* partials;  // [blocks, 2, cols] of d_gamma and d_beta, or [blocks, cols]
  bool has_beta;
  int64_t rows, cols;
  float* amax;  // of dx, or null
};

template <int N>
__device__ void store_sums(float* to, const float (&sums)[N]) {
  Pack<float, N> pack;
  for (int i = 0; i < N; ++i) pack.at[i] = sums[i];
  store(to, pack);
}

template <typename R, typename C, int N, int P>
__global__ void __launch_bounds__(most_threads) norm_backward(BackwardOperands<R, C> op, bool centred) {
  const int64_t packs = op.cols / N;
  const float inverse_cols = 1.0F / static_cast<float>(op.cols);
  float d_gamma[P][N] = {}, d_beta[P][N] = {};
  constexpr bool ahead = P <= 2;
  RunningAmax amax(op.amax);
  for (int64_t row = blockIdx.x; row < op.rows; row += gridDim.x) {
    const float mean = centred ? op.mean[row] : 0.0F;
    const float rstd = op.rstd[row];
    float normed[P][N] = {}, slope[P][N] = {};  // x_hat, and the loss' gradient of it
    Pack<R, N> residual[P] = {};                // on its way while the block adds up, where registers are left
    float sum = 0, product = 0;
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      const auto x = load<N>(op.x.at(row, column));
      const auto dy = load<N>(op.dy.at(row, column));
      const auto gamma = load<N>(op.gamma + column);
      if (ahead && op.dx_residual.data != nullptr) residual[p] = load<N>(op.dx_residual.at(row, column));
      for (int i = 0; i < N; ++i) {
        const float gradient = to_float(dy.at[i]);
        normed[p][i] = (to_float(x.at[i]) - mean) * rstd;
        slope[p][i] = gradient * gamma.at[i];
        d_gamma[p][i] += gradient * normed[p][i];
        d_beta[p][i] += gradient;
        sum += slope[p][i];
        product += slope[p][i] * normed[p][i];
      }
    });
    block_sums(sum, product);
    const float mean_slope = centred ? sum * inverse_cols : 0.0F;
    const float mean_product = product * inverse_cols;
    for_own_packs<N, P>(packs, [&](int p, int64_t column) {
      if (!ahead && op.dx_residual.data != nullptr) residual[p] = load<N>(op.dx_residual.at(row, column));
      Pack<R, N> dx;
      for (int i = 0; i < N; ++i) {
        const float own = rstd * (slope[p][i] - mean_slope - normed[p][i] * mean_product);
        dx.at[i] = rounded_to<R>(to_float(residual[p].at[i]) + own);
      }
      store(op.dx.at(row, column), dx);
      amax.see(dx);
    });
  }
  float* const partials = op.partials + static_cast<int64_t>(blockIdx.x) * (op.has_beta ? 2 : 1) * op.cols;
  for_own_packs<N, P>(packs, [&](int p, int64_t column) {
    store_sums(partials + column, d_gamma[p]);
    if (op.has_beta) store_sums(partials + op.cols + column, d_beta[p]);
  });
  amax.leave();
}

// Calls body(width, packs per thread) as constants, for rows that fit.
template <typename Body>
void with_row_shape(int64_t cols, bool packs, const Body& body) {
  const auto with_width = [&](auto width) {
    const int64_t in_packs = cols / decltype(width)::value;
    if (in_packs <= most_threads) return body(width, std::integral_constant<int, 1>{});
    if (in_packs <= 2 * most_threads) return body(width, std::integral_constant<int, 2>{});
    if (in_packs <= 4 * most_threads) return body(width, std::integral_constant<int, 4>{});
    if (in_packs <= 16 * most_threads) return body(width, std::integral_constant<int, 16>{});
    throw std::logic_error("a row is too long for the norms' kernels");
  };
  if (packs) return with_width(std::integral_constant<int, pack_width>{});
  with_width(std::integral_constant<int, 1>{});
}

}  // namespace

void cuda_run(const NormForward& op, Stream stream) {
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
                                           op.amax.as<float>()};
      const bool packs = in_packs({op.x, op.branch, op.x_out, op.gamma, op.beta, op.y});
      with_row_shape(op.x.cols, packs, [&](auto width, auto per_thread) {
        constexpr int n = decltype(width)::value;
        constexpr int p = decltype(per_thread)::value;
        const RowShape shape(op.x.cols, n, p);
        launch(stream, {std::min(op.x.rows, forward_blocks), shape.threads, sizeof(TwoSums)}, norm_forward<R, C, n, p>,
               operands, DropoutMask(op.dropout, op.sequence_length), op.kind == NormKind::layernorm);
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
                                            op.amax.as<float>()};
      const bool packs = in_packs({op.dy, op.x, op.gamma, op.dx_residual, op.dx});
      with_row_shape(op.x.cols, packs, [&](auto width, auto per_thread) {
        constexpr int n = decltype(width)::value;
        constexpr int p = decltype(per_thread)::value;
        const RowShape shape(op.x.cols, n, p);
        launch(stream, {blocks, shape.threads, sizeof(TwoSums)}, norm_backward<R, C, n, p>, operands,
               op.kind == NormKind::layernorm);
      });
    });
  });
  cuda_run(PartialSums<double>{partials, blocks, op.x.cols, op.gamma_sums.as<double>(), op.beta_sums.as<double>()},
           stream);
}

}  // namespace gptrain
