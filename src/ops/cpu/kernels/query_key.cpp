#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

template <typename C>
float rstd_of(const C* x, int64_t size, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += load(x + i) * load(x + i);
  return 1.0F / __builtin_sqrtf(sum / static_cast<float>(size) + eps);
}

// Norms (if has_norm) and rotates the halves (a, b) of a head's vector. y may alias x.
template <bool has_norm, typename C>
void rotate_head(const C* x, Gains gamma, float rstd, const float* cosines, const float* sines, C* y, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    float a = load(x + i);
    float b = load(x + half + i);
    if constexpr (has_norm) {
      a *= rstd * gamma[i];
      b *= rstd * gamma[half + i];
    }
    store(y + i, a * cosines[i] - b * sines[i]);
    store(y + half + i, b * cosines[i] + a * sines[i]);
  }
}

template <bool has_norm, typename C>
void forward_head(const QueryKeyForward& op, const C* x, Gains gamma, float* rstd_out, RotaryView rotary,
                  int64_t angles, C* y) {
  const int64_t size = op.head_size;
  float rstd = 1;
  if constexpr (has_norm) {
    rstd = rstd_of(x, size, static_cast<float>(op.eps));
    *rstd_out = rstd;
  }
  if (op.rotary) {
    rotate_head<has_norm>(x, gamma, rstd, rotary.cosines + angles, rotary.sines + angles, y, size / 2);
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    float value = load(x + i);
    if constexpr (has_norm) value *= rstd * gamma[i];
    store(y + i, value);
  }
}

template <bool has_norm, typename C>
void forward_rows(const QueryKeyForward& op, RotaryView rotary, int64_t first_row, int64_t end_row) {
  const int64_t size = op.head_size;
  const int64_t num_q_heads = op.q.cols / size;
  const int64_t num_heads = num_q_heads + op.k.cols / size;
  for (int64_t row = first_row; row < end_row; ++row) {
    const int64_t angles = op.token_rows.token(row) * (size / 2);
    for (int64_t head = 0; head < num_heads; ++head) {
      const bool is_q = head < num_q_heads;
      const int64_t column = (is_q ? head : head - num_q_heads) * size;
      const Gains gamma = gains_of(is_q ? op.q_gamma : op.k_gamma, op.offset);  // read with a norm only
      float* rstd = has_norm ? row_of<float>(op.rstd, row) + head : nullptr;
      forward_head<has_norm>(op, row_of<const C>(is_q ? op.q : op.k, row) + column, gamma, rstd, rotary, angles,
                             row_of<C>(is_q ? op.q_out : op.k_out, row) + column);
    }
  }
}

// dy of the normed vector: the gradient rotated back.
template <typename C>
void rotate_back(const C* gradient, const float* cosines, const float* sines, float* dy, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = load(gradient + i);
    const float b = load(gradient + half + i);
    dy[i] = a * cosines[i] + b * sines[i];
    dy[half + i] = b * cosines[i] - a * sines[i];
  }
}

template <typename C>
void norm_backward_head(const float* dy, const C* x, Gains gamma, float rstd, int64_t size, float* d_gamma, C* dx) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    const float x_hat = load(x + i) * rstd;
    d_gamma[i] += dy[i] * x_hat;
    sum += dy[i] * gamma[i] * x_hat;
  }
  const float mean = sum / static_cast<float>(size);
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) store(dx + i, rstd * (dy[i] * gamma[i] - load(x + i) * rstd * mean));
}

template <bool has_norm, typename C>
void backward_rows(const QueryKeyBackward& op, RotaryView rotary, int64_t first_row, int64_t end_row, float* work) {
  const int64_t size = op.head_size;
  const int64_t num_q_heads = op.dq.cols / size;
  const int64_t num_heads = num_q_heads + op.dk.cols / size;
  float* d_gammas[2] = {work, work + size};
  float* dy = work + 2 * size;
  for (int64_t row = first_row; row < end_row; ++row) {
    const int64_t angles = op.token_rows.token(row) * (size / 2);
    for (int64_t head = 0; head < num_heads; ++head) {
      const bool is_q = head < num_q_heads;
      const int64_t column = (is_q ? head : head - num_q_heads) * size;
      C* gradient = row_of<C>(is_q ? op.dq : op.dk, row) + column;
      if (op.rotary) {
        rotate_back(gradient, rotary.cosines + angles, rotary.sines + angles, dy, size / 2);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < size; ++i) dy[i] = load(gradient + i);
      }
      if constexpr (has_norm) {
        norm_backward_head(dy, row_of<const C>(is_q ? op.q : op.k, row) + column,
                           gains_of(is_q ? op.q_gamma : op.k_gamma, op.offset), row_of<float>(op.rstd, row)[head], size,
                           d_gammas[is_q ? 0 : 1], gradient);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < size; ++i) store(gradient + i, dy[i]);
      }
    }
  }
}

}  // namespace

void query_key_forward(const QueryKeyForward& op, RotaryView rotary, int64_t first_row, int64_t end_row) {
  with_type(op.q.dtype, [&](auto type) {
    using C = decltype(type);
    if (op.q_gamma.rows > 0) {
      forward_rows<true, C>(op, rotary, first_row, end_row);
    } else {
      forward_rows<false, C>(op, rotary, first_row, end_row);
    }
  });
}

void query_key_backward(const QueryKeyBackward& op, RotaryView rotary, int64_t first_row, int64_t end_row,
                        float* work) {
  for (int64_t i = 0; i < 2 * op.head_size; ++i) work[i] = 0;
  with_type(op.dq.dtype, [&](auto type) {
    using C = decltype(type);
    if (op.q_gamma.rows > 0) {
      backward_rows<true, C>(op, rotary, first_row, end_row, work);
    } else {
      backward_rows<false, C>(op, rotary, first_row, end_row, work);
    }
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
