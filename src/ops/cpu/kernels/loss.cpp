#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/math.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// Columns whose maximum and then sum are computed at a time: few enough that the second pass finds them in the L1
// cache.
constexpr int64_t span = 2048;

// Logits as they are.
struct Uncapped {
  float value(float logit) const { return logit; }
  float slope(float) const { return 1.0F; }
};

// cap * tanh(logit / cap) in place of each logit.
struct Softcap {
  float cap;
  float inverse;

  float value(float logit) const { return cap * tanh_f32(logit * inverse); }
  float slope(float logit) const { return tanh_slope(logit * inverse); }
};

template <typename Body>
void with_cap(double softcap, const Body& body) {
  if (softcap > 0) {
    body(Softcap{static_cast<float>(softcap), static_cast<float>(1.0 / softcap)});
  } else {
    body(Uncapped{});
  }
}

// sum: the sum of e^(logit - maximum).
struct SoftmaxSums {
  float maximum;
  double sum;
};

template <typename L, typename Cap>
float maximum_of(const L* logits, int64_t count, Cap cap) {
  float maximum = -infinity;
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < count; ++i) {
    const float logit = cap.value(load(logits + i));
    maximum = logit > maximum ? logit : maximum;
  }
  return maximum;
}

template <typename L, typename Cap>
float sum_of_exponentials(const L* logits, int64_t count, Cap cap, float maximum) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += exp_f32(cap.value(load(logits + i)) - maximum);
  return sum;
}

// Computes both in one pass over memory: if a span raises the maximum, the sum so far is rescaled. A NaN logit does not
// become the maximum but makes the sum NaN.
template <typename L, typename Cap>
SoftmaxSums softmax_sums(const L* logits, int64_t vocab_size, Cap cap) {
  SoftmaxSums sums{-infinity, 0};
  for (int64_t first = 0; first < vocab_size; first += span) {
    const int64_t count = vocab_size - first < span ? vocab_size - first : span;
    const float maximum = maximum_of(logits + first, count, cap);
    if (maximum > sums.maximum) {
      sums.sum *= static_cast<double>(exp_f32(sums.maximum - maximum));
      sums.maximum = maximum;
    }
    sums.sum += static_cast<double>(sum_of_exponentials(logits + first, count, cap, sums.maximum));
  }
  return sums;
}

template <typename L, typename C, typename Cap>
void gradient_row(const L* logits, C* d_logits, int64_t vocab_size, Cap cap, float maximum, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < vocab_size; ++i) {
    const float logit = load(logits + i);
    store(d_logits + i, exp_f32(cap.value(logit) - maximum) * scale * cap.slope(logit));
  }
}

template <typename C>
void clear(C* values, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; ++i) store(values + i, 0.0F);
}

// Statistics of a whole row of logits.
struct LogitsRow {
  SoftmaxSums sums;     // over the whole vocabulary
  double target_logit;  // target's logit minus sums.maximum
};

// RETURNS the number of columns of a slice of the logits that are not padding.
inline int64_t true_columns(int64_t vocab_size, int64_t first_token, int64_t cols) {
  const int64_t left = vocab_size - first_token;
  return left < 0 ? 0 : left < cols ? left : cols;
}

// RETURNS the statistics of a whole row from those of its slices, in order.
inline LogitsRow combine_slices(const CrossEntropy& op, int64_t row) {
  LogitsRow result{{-infinity, 0}, 0};
  for (int64_t i = 0; i < op.statistics.rows; i += 3) {
    const float maximum = row_of<float>(op.statistics, i)[row];
    result.sums.maximum = maximum > result.sums.maximum ? maximum : result.sums.maximum;
  }
  for (int64_t i = 0; i < op.statistics.rows; i += 3) {
    const float maximum = row_of<float>(op.statistics, i)[row];
    const double sum = static_cast<double>(row_of<float>(op.statistics, i + 1)[row]);
    // A slice of padding is skipped, as minus infinity minus itself would be NaN. A NaN sum is not skipped.
    if (sum != 0) result.sums.sum += sum * static_cast<double>(exp_f32(maximum - result.sums.maximum));
    result.target_logit += static_cast<double>(row_of<float>(op.statistics, i + 2)[row]);
  }
  result.target_logit -= static_cast<double>(result.sums.maximum);
  return result;
}

template <typename L, typename Cap>
void row_statistics(const CrossEntropyStatistics& op, int64_t row, Cap cap) {
  const L* logits = row_of<L>(op.logits, row);
  const int64_t cols = true_columns(op.vocab_size, op.first_token, op.logits.cols);
  const SoftmaxSums sums = softmax_sums(logits, cols, cap);
  const int64_t target = op.targets[row] - op.first_token;
  row_of<float>(op.statistics, 0)[row] = sums.maximum;
  row_of<float>(op.statistics, 1)[row] = static_cast<float>(sums.sum);
  row_of<float>(op.statistics, 2)[row] =
      op.targets[row] >= 0 && target >= 0 && target < cols ? cap.value(load(logits + target)) : 0.0F;
}

template <typename L, typename C, typename Cap>
void row_loss(const CrossEntropy& op, int64_t row, Cap cap) {
  const L* logits = row_of<L>(op.logits, row);
  C* d_logits = op.d_logits.rows > 0 ? row_of<C>(op.d_logits, row) : nullptr;
  float* loss = row_of<float>(op.losses, 0) + row;
  if (op.targets[row] < 0) {
    *loss = 0;
    if (d_logits != nullptr) clear(d_logits, 0, op.d_logits.cols);
    return;
  }
  const int64_t cols = true_columns(op.vocab_size, op.first_token, op.logits.cols);
  const int64_t target = op.targets[row] - op.first_token;
  LogitsRow whole;
  if (op.statistics.rows > 0) {
    whole = combine_slices(op, row);
  } else {
    whole.sums = softmax_sums(logits, cols, cap);
    whole.target_logit =
        static_cast<double>(cap.value(load(logits + target))) - static_cast<double>(whole.sums.maximum);
  }
  const auto& [sums, target_logit] = whole;
  const double log_sum = __builtin_log(sums.sum);
  *loss = static_cast<float>(log_sum - target_logit);
  if (d_logits == nullptr) return;

  // d/dlogit of (lse - target logit + z lse^2) = p (1 + 2 z lse) - [target], times the slope of a cap.
  const double lse = static_cast<double>(sums.maximum) + log_sum;
  const double inverse_tokens =
      static_cast<double>(op.state->inverse_tokens) * static_cast<double>(op.state->loss_scale.value);
  const double scale = (1.0 + 2.0 * op.z_loss * lse) * inverse_tokens / sums.sum;
  const bool has_target = target >= 0 && target < cols;
  const float target_slope = has_target ? cap.slope(load(logits + target)) : 0.0F;  // d_logits may be the logits
  gradient_row(logits, d_logits, cols, cap, sums.maximum, static_cast<float>(scale));
  if (has_target) {
    // The difference is computed before rounding to C, so it is rounded once.
    const double target_exponential = static_cast<double>(exp_f32(static_cast<float>(target_logit)));
    const double gradient = (target_exponential * scale - inverse_tokens) * static_cast<double>(target_slope);
    store(d_logits + target, static_cast<float>(gradient));
  }
  clear(d_logits, cols, op.d_logits.cols);
}

}  // namespace

void cross_entropy_statistics(const CrossEntropyStatistics& op, int64_t first_row, int64_t end_row) {
  with_type(op.logits.dtype, [&](auto type) {
    with_cap(op.softcap, [&](auto cap) {
      for (int64_t row = first_row; row < end_row; ++row) row_statistics<decltype(type)>(op, row, cap);
    });
  });
}

void cross_entropy(const CrossEntropy& op, int64_t first_row, int64_t end_row) {
  with_type(op.logits.dtype, [&](auto logits_type) {
    with_type(op.d_logits.dtype, [&](auto compute_type) {
      with_cap(op.softcap, [&](auto cap) {
        for (int64_t row = first_row; row < end_row; ++row)
          row_loss<decltype(logits_type), decltype(compute_type)>(op, row, cap);
      });
    });
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
