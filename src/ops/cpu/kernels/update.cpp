#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"

namespace gptrain::GPTRAIN_ISA {
namespace {

struct AdamWFactors {
  float gradient_scale;
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float inverse_correction1, inverse_correction2;
  float eps;
  float learning_rate;
  float decay;  // learning rate times weight decay
};

AdamWFactors factors_of(const AdamW& op, bool decay) {
  const double learning_rate = static_cast<double>(op.state->learning_rate);
  return {.gradient_scale = op.state->gradient_scale,
          .beta1 = static_cast<float>(op.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
          .beta2 = static_cast<float>(op.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
          .inverse_correction1 = static_cast<float>(1.0 / static_cast<double>(op.state->bias_correction1)),
          .inverse_correction2 = static_cast<float>(1.0 / static_cast<double>(op.state->bias_correction2)),
          .eps = static_cast<float>(op.eps),
          .learning_rate = op.state->learning_rate,
          .decay = decay ? static_cast<float>(learning_rate * op.weight_decay) : 0.0F};
}

template <bool has_weights, typename C>
void update(const AdamWFactors& f, const float* gradients, float* master, float* exp_avg, float* exp_avg_sq, C* weights,
            int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] * f.gradient_scale;
    const float m = f.beta1 * exp_avg[i] + f.one_minus_beta1 * gradient;
    const float v = f.beta2 * exp_avg_sq[i] + f.one_minus_beta2 * gradient * gradient;
    const float step = m * f.inverse_correction1 / (__builtin_sqrtf(v * f.inverse_correction2) + f.eps);
    const float w = master[i] - f.learning_rate * step - f.decay * master[i];
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    master[i] = w;
    if constexpr (has_weights) store(weights + i, w);
  }
}

}  // namespace

double sum_of_squares(const float* values, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

void adamw(const AdamW& op, bool decay, int64_t first, int64_t end) {
  const AdamWFactors factors = factors_of(op, decay);
  const float* gradients = row_of<float>(op.gradients, 0) + first;
  float* master = row_of<float>(op.master, 0) + first;
  float* exp_avg = row_of<float>(op.exp_avg, 0) + first;
  float* exp_avg_sq = row_of<float>(op.exp_avg_sq, 0) + first;
  if (op.weights.rows == 0) {
    update<false, float>(factors, gradients, master, exp_avg, exp_avg_sq, nullptr, end - first);
    return;
  }
  with_type(op.weights.dtype, [&](auto type) {
    using C = decltype(type);
    update<true>(factors, gradients, master, exp_avg, exp_avg_sq, row_of<C>(op.weights, 0) + first, end - first);
  });
}

}  // namespace gptrain::GPTRAIN_ISA
