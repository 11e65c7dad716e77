#include <utility>

#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/philox_lanes.h"

namespace gptrain::GPTRAIN_ISA {
namespace {

template <bool has_weights, typename Formula, typename C, typename... Columns>
void update_masters(const Formula& formula, const float* gradients, float* master, C* weights, int64_t count,
                    Columns*... columns) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = formula.updated(gradients[i], master[i], columns[i]...);
    master[i] = w;
    if constexpr (has_weights) store(weights + i, w);
  }
}

template <typename Formula, typename... Columns>
void update_rounding(const Formula& formula, const float* gradients, bf16* weights, const uint32_t* words,
                     int64_t count, Columns*... columns) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = formula.updated(gradients[i], load(weights + i), columns[i]...);
    weights[i] = stochastic_bf16(w, words[i]);
  }
}

// Elements whose words are drawn at a time: small enough for the L1 cache.
constexpr int64_t rounding_span = 1024;

// Elements [first, end) of the flat buffers, which have no masters, in runs that follow one another in the tensor.
template <typename Formula, typename... Columns>
void update_without_masters(const ElementUpdate& op, const UpdateSegment& segment, const Formula& formula,
                            int64_t first, int64_t end, Columns*... columns) {
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
    update_rounding(formula, row_of<float>(op.gradients, 0) + at, row_of<bf16>(op.weights, 0) + at, words + index % 4,
                    count, columns + at...);
    at += count;
  }
}

template <typename Op, size_t... column>
void update_range(const Op& op, const typename Op::Formula& formula, const UpdateSegment& segment, int64_t first,
                  int64_t end, std::index_sequence<column...>) {
  if (op.master.rows == 0) {
    return update_without_masters(op, segment, formula, first, end, op.columns[column].template as<float>()...);
  }
  const float* gradients = row_of<float>(op.gradients, 0) + first;
  float* master = row_of<float>(op.master, 0) + first;
  if (op.weights.rows == 0) {
    return update_masters<false>(formula, gradients, master, static_cast<float*>(nullptr), end - first,
                                 op.columns[column].template as<float>() + first...);
  }
  with_type(op.weights.dtype, [&](auto type) {
    using C = decltype(type);
    update_masters<true>(formula, gradients, master, row_of<C>(op.weights, 0) + first, end - first,
                         op.columns[column].template as<float>() + first...);
  });
}

template <typename Formula, typename C, typename... Columns>
void measure(const Formula& formula, const float* gradients, const C* weights, int64_t count, double* sums,
             const Columns*... columns) {
  double of_weights = 0, of_measured = 0;
#pragma omp simd reduction(+ : of_weights, of_measured)
  for (int64_t i = 0; i < count; ++i) {
    const float w = load(weights + i);
    const auto measured = static_cast<double>(formula.measured(gradients[i], w, columns[i]...));
    of_weights += static_cast<double>(w) * static_cast<double>(w);
    of_measured += measured * measured;
  }
  sums[0] = of_weights;
  sums[1] = of_measured;
}

template <typename Op, size_t... column>
void measure_range(const Op& op, const typename Op::Formula& formula, int64_t first, int64_t end, double* sums,
                   std::index_sequence<column...>) {
  const float* gradients = row_of<float>(op.gradients, 0) + first;
  const auto measure_weights = [&](const auto* weights) {
    measure(formula, gradients, weights + first, end - first, sums,
            op.columns[column].template as<const float>() + first...);
  };
  if (op.master.rows == 0) return measure_weights(row_of<bf16>(op.weights, 0));
  measure_weights(row_of<float>(op.master, 0));
}

}  // namespace

double sum_of_squares(const float* values, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

#define GPTRAIN_UPDATE(Op)                                                                                          \
  void update(const Op& op, const Op::Formula& formula, const UpdateSegment& segment, int64_t first, int64_t end) { \
    update_range(op, formula, segment, first, end, std::make_index_sequence<Op::num_columns>());                    \
  }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE)
#undef GPTRAIN_UPDATE

#define GPTRAIN_TENSOR_NORMS(Op)                                                                                  \
  void tensor_norms(const Op& op, const Op::Update::Formula& formula, int64_t first, int64_t end, double* sums) { \
    measure_range(op.update, formula, first, end, sums, std::make_index_sequence<Op::Update::num_columns>());     \
  }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS)
#undef GPTRAIN_TENSOR_NORMS

}  // namespace gptrain::GPTRAIN_ISA
