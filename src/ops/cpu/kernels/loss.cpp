#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/math.h"

namespace gptrain::GPTRAIN_ISA {
namespace {

// Columns whose maximum and sum are taken together: the second look at them finds them in the L1 cache.
constexpr int64_t span = 2048;

// sum: of e^(logit - maximum).
struct SoftmaxSums {
  float maximum;
  double sum;
};

template <typename L>
float maximum_of(const L* logits, int64_t count) {
  float maximum = -infinity;
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < count; ++i) {
    const float logit = load(logits + i);
    maximum = logit > maximum ? logit : maximum;
  }
  return maximum;
}

template <typename L>
float sum_of_exponentials(const L* logits, int64_t count, float maximum) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += exp_f32(load(logits + i) - maximum);
  return sum;
}

// One pass over memory: where a span raises the maximum, what was summed before shrinks. A NaN logit is no maximum but
// makes the sum NaN.
template <typename L>
SoftmaxSums softmax_sums(const L* logits, int64_t vocab_size) {
  SoftmaxSums sums{-infinity, 0};
  for (int64_t first = 0; first < vocab_size; first += span) {
    const int64_t count = vocab_size - first < span ? vocab_size - first : span;
    const float maximum = maximum_of(logits + first, count);
    if (maximum > sums.maximum) {
      sums.sum *= static_cast<double>(exp_f32(sums.maximum - maximum));
      sums.maximum = maximum;
    }
    sums.sum += static_cast<double>(sum_of_exponentials(logits + first, count, sums.maximum));
  }
  return sums;
}

template <typename L, typename C>
void gradient_row(const L* logits, C* d_logits, int64_t vocab_size, float maximum, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < vocab_size; ++i) store(d_logits + i, exp_f32(load(logits + i) - maximum) * scale);
}

template <typename C>
void clear(C* values, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; ++i) store(values + i, 0.0F);
}

template <typename L, typename C>
void row_loss(const CrossEntropy& op, int64_t row) {
  const L* logits = row_of<L>(op.logits, row);
  C* d_logits = op.d_logits.rows > 0 ? row_of<C>(op.d_logits, row) : nullptr;
  float* loss = row_of<float>(op.losses, 0) + row;
  const int32_t target = op.targets[row];
  if (target < 0) {
    *loss = 0;
    if (d_logits != nullptr) clear(d_logits, 0, op.d_logits.cols);
    return;
  }
  const SoftmaxSums sums = softmax_sums(logits, op.vocab_size);
  const double log_sum = __builtin_log(sums.sum);
  const double target_logit = static_cast<double>(load(logits + target)) - static_cast<double>(sums.maximum);
  *loss = static_cast<float>(log_sum - target_logit);
  if (d_logits == nullptr) return;

  // d/dlogit of (lse - target logit + z lse^2) = p (1 + 2 z lse) - [target].
  const double lse = static_cast<double>(sums.maximum) + log_sum;
  const double inverse_tokens = static_cast<double>(op.state->inverse_tokens);
  const double scale = (1.0 + 2.0 * op.z_loss * lse) * inverse_tokens / sums.sum;
  const float target_exponential = exp_f32(static_cast<float>(target_logit));
  gradient_row(logits, d_logits, op.vocab_size, sums.maximum, static_cast<float>(scale));
  // Rounded once: the difference is taken before it is stored.
  store(d_logits + target, static_cast<float>(static_cast<double>(target_exponential) * scale - inverse_tokens));
  clear(d_logits, op.vocab_size, op.d_logits.cols);
}

}  // namespace

void cross_entropy(const CrossEntropy& op, int64_t first_row, int64_t end_row) {
  with_type(op.logits.dtype, [&](auto logits_type) {
    with_type(op.d_logits.dtype, [&](auto compute_type) {
      for (int64_t row = first_row; row < end_row; ++row)
        row_loss<decltype(logits_type), decltype(compute_type)>(op, row);
    });
  });
}

}  // namespace gptrain::GPTRAIN_ISA
