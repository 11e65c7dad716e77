#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/residual.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

template <typename R>
float mean_of(const R* x, int64_t cols) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < cols; ++i) sum += load(x + i);
  return sum / static_cast<float>(cols);
}

// RETURNS the mean of (x - mean)^2. A separate pass is accurate even if the mean is large against the deviation.
template <typename R>
float variance_of(const R* x, int64_t cols, float mean) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < cols; ++i) {
    const float centered = load(x + i) - mean;
    sum += centered * centered;
  }
  return sum / static_cast<float>(cols);
}

template <typename R, typename C>
void normalize(const R* x, float mean, float rstd, Gains gamma, const float* beta, C* y, int64_t cols) {
  if (beta == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) store(y + i, (load(x + i) - mean) * rstd * gamma[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) store(y + i, (load(x + i) - mean) * rstd * gamma[i] + beta[i]);
  }
}

// Computes the norm of one row; RMS norm is layer norm with mean 0.
template <typename R, typename C>
void forward_row(const NormForward& op, int64_t row) {
  const int64_t cols = op.x.cols;
  const R* x = row_of<R>(op.x, row);
  if (op.branch.rows > 0) {
    R* x_out = row_of<R>(op.x_out, row);
    add_branch(x, row_of<const C>(op.branch, row), x_out, cols, op.dropout, row, op.token_rows);
    x = x_out;
  }
  float mean = 0;
  if (op.kind == NormKind::layernorm) {
    mean = mean_of(x, cols);
    row_of<float>(op.mean, 0)[row] = mean;
  }
  const float rstd = 1.0F / __builtin_sqrtf(variance_of(x, cols, mean) + static_cast<float>(op.eps));
  row_of<float>(op.rstd, 0)[row] = rstd;
  normalize(x, mean, rstd, gains_of(op.gamma, op.offset), op.beta.rows > 0 ? row_of<const float>(op.beta, 0) : nullptr,
            row_of<C>(op.y, row), cols);
}

// Means over a row of g = dy gamma and of g x_hat.
struct RowMeans {
  float g;
  float g_x_hat;
};

template <typename R, typename C>
RowMeans row_means(const C* dy, Gains gamma, const R* x, float mean, float rstd, int64_t cols) {
  float sum_g = 0;
  float sum_g_x_hat = 0;
#pragma omp simd reduction(+ : sum_g, sum_g_x_hat)
  for (int64_t i = 0; i < cols; ++i) {
    const float g = load(dy + i) * gamma[i];
    sum_g += g;
    sum_g_x_hat += g * ((load(x + i) - mean) * rstd);
  }
  return {sum_g / static_cast<float>(cols), sum_g_x_hat / static_cast<float>(cols)};
}

template <bool has_residual, typename R, typename C>
void backward_row(const NormBackward& op, int64_t row, float* d_gamma, float* d_beta) {
  const int64_t cols = op.x.cols;
  const C* dy = row_of<C>(op.dy, row);
  const R* x = row_of<R>(op.x, row);
  const Gains gamma = gains_of(op.gamma, op.offset);
  const bool centered = op.kind == NormKind::layernorm;
  const float mean = centered ? row_of<float>(op.mean, 0)[row] : 0.0F;
  const float rstd = row_of<float>(op.rstd, 0)[row];
  RowMeans means = row_means(dy, gamma, x, mean, rstd, cols);
  if (!centered) means.g = 0;
  const R* dx_residual = has_residual ? row_of<R>(op.dx_residual, row) : nullptr;
  R* dx = row_of<R>(op.dx, row);
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) {
    const float dy_i = load(dy + i);
    const float x_hat = (load(x + i) - mean) * rstd;
    const float d_norm = rstd * (dy_i * gamma[i] - means.g - x_hat * means.g_x_hat);
    float residual = 0;
    if constexpr (has_residual) residual = load(dx_residual + i);
    store(dx + i, residual + d_norm);
    d_gamma[i] += dy_i * x_hat;
    d_beta[i] += dy_i;
  }
}

}  // namespace

void norm_forward(const NormForward& op, int64_t first_row, int64_t end_row) {
  with_type(op.x.dtype, [&](auto residual_type) {
    with_type(op.y.dtype, [&](auto compute_type) {
      for (int64_t row = first_row; row < end_row; ++row)
        forward_row<decltype(residual_type), decltype(compute_type)>(op, row);
    });
  });
}

void norm_backward(const NormBackward& op, int64_t first_row, int64_t end_row, float* d_gamma, float* d_beta) {
  for (int64_t i = 0; i < op.x.cols; ++i) d_gamma[i] = d_beta[i] = 0;
  with_type(op.x.dtype, [&](auto residual_type) {
    using R = decltype(residual_type);
    with_type(op.dy.dtype, [&](auto compute_type) {
      using C = decltype(compute_type);
      for (int64_t row = first_row; row < end_row; ++row) {
        if (op.dx_residual.rows > 0) {
          backward_row<true, R, C>(op, row, d_gamma, d_beta);
        } else {
          backward_row<false, R, C>(op, row, d_gamma, d_beta);
        }
      }
    });
  });
}

void add_partials(const float* partials, int64_t num_partials, int64_t stride, double* sums, int64_t first_column,
                  int64_t end_column) {
  // Sums in double, a few columns at a time, so that the error does not grow with the number of partial sums.
  constexpr int64_t width = 64;
  for (int64_t first = first_column; first < end_column; first += width) {
    const int64_t count = first + width < end_column ? width : end_column - first;
    double total[width] = {};
    for (int64_t block = 0; block < num_partials; ++block) {
      const float* partial = partials + block * stride + first;
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) total[i] += static_cast<double>(partial[i]);
    }
    for (int64_t i = 0; i < count; ++i) sums[first + i] = total[i];
  }
}

}  // namespace gptrain::ops::GPTRAIN_ISA
