#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/philox_lanes.h"

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

// The updated weight; m and v, too, become those after the update.
inline float updated(const AdamWFactors& f, float gradient, float weight, float& m, float& v) {
  const float g = gradient * f.gradient_scale;
  m = f.beta1 * m + f.one_minus_beta1 * g;
  v = f.beta2 * v + f.one_minus_beta2 * g * g;
  const float step = m * f.inverse_correction1 / (__builtin_sqrtf(v * f.inverse_correction2) + f.eps);
  return weight - f.learning_rate * step - f.decay * weight;
}

template <bool has_weights, typename C>
void update(const AdamWFactors& f, const float* gradients, float* master, float* exp_avg, float* exp_avg_sq, C* weights,
            int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = updated(f, gradients[i], master[i], exp_avg[i], exp_avg_sq[i]);
    master[i] = w;
    if constexpr (has_weights) store(weights + i, w);
  }
}

// Elements whose words are drawn at a time: small enough for the L1 cache.
constexpr int64_t rounding_span = 1024;

void update_rounding(const AdamWFactors& f, const float* gradients, bf16* weights, float* exp_avg, float* exp_avg_sq,
                     const uint32_t* words, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = updated(f, gradients[i], load(weights + i), exp_avg[i], exp_avg_sq[i]);
    weights[i] = stochastic_bf16(w, words[i]);
  }
}

// Elements [first, end) of the flat buffers, which have no masters, in runs that follow one another in the tensor.
void update_without_masters(const AdamW& op, const AdamW::Segment& segment, const AdamWFactors& factors, int64_t first,
                            int64_t end) {
  constexpr int64_t same_high_half = int64_t{4} << 32;  // elements whose counters differ in the low half only
  const IndexMap& map = segment.map;
  const auto updates = static_cast<uint64_t>(op.state->updates);
  for (int64_t at = first; at < end;) {
    const int64_t index = map.index(at - segment.offset);
    int64_t count = end - at < rounding_span ? end - at : rounding_span;
    if (map.cols != map.stride) {
      const int64_t left = map.cols - (map.first + at - segment.offset) % map.cols;  // of the row
      count = count < left ? count : left;
    }
    const int64_t left = same_high_half - index % same_high_half;
    count = count < left ? count : left;
    const PhiloxCounters counters{segment.key.k0, segment.key.k1, static_cast<uint32_t>(index / same_high_half),
                                  static_cast<uint32_t>(updates), static_cast<uint32_t>(updates >> 32)};
    uint32_t words[rounding_span + 4 * philox_counters];
    for (int64_t n = 0; n < index % 4 + count; n += 4 * philox_counters)
      philox_words(words + n, counters, static_cast<uint32_t>((index + n) / 4));
    update_rounding(factors, row_of<float>(op.gradients, 0) + at, row_of<bf16>(op.weights, 0) + at,
                    row_of<float>(op.exp_avg, 0) + at, row_of<float>(op.exp_avg_sq, 0) + at, words + index % 4, count);
    at += count;
  }
}

}  // namespace

double sum_of_squares(const float* values, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

void adamw(const AdamW& op, const AdamW::Segment& segment, int64_t first, int64_t end) {
  const AdamWFactors factors = factors_of(op, segment.decay != 0);
  if (op.master.rows == 0) return update_without_masters(op, segment, factors, first, end);
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
