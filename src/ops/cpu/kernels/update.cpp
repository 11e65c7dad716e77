#include <type_traits>
#include <utility>

#include "ops/cpu/kernels/block_codes.h"
#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/kernels/philox_lanes.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// `formula` is passed by value: the compiler would reload a referenced one for each element, as stores might change it.
template <bool has_weights, typename Formula, typename G, typename C, typename... Columns>
void update_masters(const Formula formula, const G* gradients, float* master, C* weights, int64_t count,
                    Columns*... columns) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = formula.updated(load(gradients + i), master[i], columns[i]...);
    master[i] = w;
    if constexpr (has_weights) store(weights + i, w);
  }
}

template <typename Formula, typename G, typename... Columns>
void update_rounding(const Formula formula, const G* gradients, bf16* weights, const uint32_t* words, int64_t count,
                     Columns*... columns) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float w = formula.updated(load(gradients + i), load(weights + i), columns[i]...);
    weights[i] = stochastic_bf16(w, words[i]);
  }
}

// Elements whose words are computed at a time: few enough for the L1 cache.
constexpr int64_t rounding_span = 1024;

// Calls body(at, count, words) for runs of elements in [first, end) of the flat buffers that are contiguous in the
// tensor. `low` and `high` are the last two words of the counters from which `words` are drawn.
template <typename Segment, typename Body>
void for_rounded_runs(const Segment& segment, int64_t first, int64_t end, uint32_t low, uint32_t high,
                      const Body& body) {
  constexpr int64_t same_high_half = int64_t{4} << 32;  // elements whose counters differ only in the low half
  const IndexMap& map = segment.map;
  for (int64_t at = first; at < end;) {
    const int64_t index = map.index(at - segment.offset);
    int64_t count = end - at < rounding_span ? end - at : rounding_span;
    if (map.cols != map.stride) {
      const int64_t left = map.cols - (map.first + at - segment.offset) % map.cols;  // elements left in the row
      count = count < left ? count : left;
    }
    const int64_t left = same_high_half - index % same_high_half;
    count = count < left ? count : left;
    const PhiloxCounters counters{segment.key.k0, segment.key.k1, static_cast<uint32_t>(index / same_high_half), low,
                                  high};
    uint32_t words[rounding_span + 4 * philox_counters];
    for (int64_t n = 0; n < index % 4 + count; n += 4 * philox_counters)
      philox_words(words + n, counters, static_cast<uint32_t>((index + n) / 4));
    body(at, count, words + index % 4);
    at += count;
  }
}

// Updates elements [first, end) of the flat buffers, with masters or without. `gradients` and `columns` point at
// element `first`.
template <typename Formula, typename G, typename... Columns>
void update_with(const G* gradients, const ElementUpdate& op, const UpdateSegment& segment, const Formula& formula,
                 int64_t first, int64_t end, Columns*... columns) {
  if (op.master.rows == 0) {
    const auto updates = static_cast<uint64_t>(op.state->updates);
    return for_rounded_runs(segment, first, end, static_cast<uint32_t>(updates), static_cast<uint32_t>(updates >> 32),
                            [&](int64_t at, int64_t count, const uint32_t* words) {
                              update_rounding(formula, gradients + (at - first), row_of<bf16>(op.weights, 0) + at,
                                              words, count, columns + (at - first)...);
                            });
  }
  float* master = row_of<float>(op.master, 0) + first;
  if (op.weights.rows == 0) {
    return update_masters<false>(formula, gradients, master, static_cast<float*>(nullptr), end - first, columns...);
  }
  with_any_type(op.weights.dtype, [&](auto type) {
    using C = decltype(type);
    update_masters<true>(formula, gradients, master, row_of<C>(op.weights, 0) + first, end - first, columns...);
  });
}

template <typename Op, typename... Columns>
void update_elements(const Op& op, const UpdateSegment& segment, const typename Op::Formula& formula, int64_t first,
                     int64_t end, Columns*... columns) {
  if constexpr (Op::takes_bf16_gradients) {
    if (op.gradients.dtype == DType::bf16)
      return update_with(row_of<bf16>(op.gradients, 0) + first, op, segment, formula, first, end, columns...);
  }
  update_with(row_of<float>(op.gradients, 0) + first, op, segment, formula, first, end, columns...);
}

template <typename Op, size_t... column>
void update_range(const Op& op, const typename Op::Formula& formula, const UpdateSegment& segment, int64_t first,
                  int64_t end, std::index_sequence<column...>) {
  update_elements(op, segment, formula, first, end, op.columns[column].template as<float>() + first...);
}

// A block's decoded moments.
struct BlockMoments {
  alignas(64) float m[state_block];
  alignas(64) float v[state_block];
};

template <typename Op>
uint8_t* codes_of(const Op& op, size_t column, int64_t block) {
  return row_of<uint8_t>(op.columns[column], 0) + block * state_block;
}

template <typename Op>
void decode_moments(const Op& op, int64_t block, BlockMoments& moments) {
  const auto decode = [&]<bool has_sign>(std::bool_constant<has_sign>, size_t column, float* values) {
    const uint8_t* const codes = codes_of(op, column, block);
    const float scale = row_of<float>(op.scales[column], 0)[block];
    if (op.by_tables) return decode_by_table<has_sign>(codes, scale, values);
    decode_block<has_sign>(codes, scale, values);
  };
  decode(std::true_type(), 0, moments.m);
  decode(std::false_type(), 1, moments.v);
}

// `more`: indices of the columns after the two columns of codes.
template <typename Op, size_t... more>
void update_each_block(const Op& op, const typename Op::Formula& formula, int64_t first, int64_t end,
                       std::index_sequence<more...>) {
  BlockMoments moments[2];
  int64_t next = 0;    // first segment that does not end before the block
  int64_t begun = -1;  // segment for which `own` is set up; -1: none
  auto own = formula;
  if (first < end) decode_moments(op, first, moments[first % 2]);
  for (int64_t block = first; block < end; ++block) {
    const int64_t begin = block * state_block, end_of_block = begin + state_block;
    float* const m = moments[block % 2].m;
    float* const v = moments[block % 2].v;
    const auto clear = [&](int64_t from, int64_t to) {
      for (int64_t i = from - begin; i < to - begin; ++i) m[i] = v[i] = 0;
    };
    while (next < op.num_segments && op.segments[next].offset + op.segments[next].count <= begin) ++next;
    int64_t done = begin;
    for (int64_t i = next; i < op.num_segments && op.segments[i].offset < end_of_block; ++i) {
      const UpdateSegment& segment = op.segments[i];
      const int64_t end_of_segment = segment.offset + segment.count;
      const int64_t from = segment.offset > begin ? segment.offset : begin;
      const int64_t to = end_of_segment < end_of_block ? end_of_segment : end_of_block;
      clear(done, from);
      if (begun != i) {
        own = formula;
        own.begin_segment(segment);
        begun = i;
      }
      update_elements(op, segment, own, from, to, m + (from - begin), v + (from - begin),
                      row_of<float>(op.columns[2 + more], 0) + from...);
      done = to;
    }
    clear(done, end_of_block);
    const float m_scale = base::block_scale(largest_magnitude(m)), v_scale = base::block_scale(largest_magnitude(v));
    // Decodes the next block while this block's scales are still being computed.
    if (block + 1 < end) decode_moments(op, block + 1, moments[(block + 1) % 2]);
    row_of<float>(op.scales[0], 0)[block] = m_scale;
    row_of<float>(op.scales[1], 0)[block] = v_scale;
    if (op.by_tables) {
      encode_by_table<true>(m, codes_of(op, 0, block), inverse_of_scale(m_scale));
      encode_by_table<false>(v, codes_of(op, 1, block), inverse_of_scale(v_scale));
    } else {
      encode_values<true>(m, codes_of(op, 0, block), inverse_of_scale(m_scale));
      encode_values<false>(v, codes_of(op, 1, block), inverse_of_scale(v_scale));
    }
  }
}

template <typename Formula, typename C, typename... Columns>
void measure(const Formula formula, const float* gradients, const C* weights, int64_t count, double* sums,
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

// Adds up in the order of `measure_chunks` of the CUDA backend (ops/gpu_scratch.h).
template <typename Formula, typename C, typename... Columns>
void measure_in_lanes(const Formula formula, const float* gradients, const C* weights, int64_t count, double* sums,
                      const Columns*... columns) {
  double of_weights[gpu_norm_lanes] = {}, of_measured[gpu_norm_lanes] = {};
  const auto add = [&](int64_t lane, int64_t i) {
    const float w = load(weights + i);
    const auto measured = static_cast<double>(formula.measured(gradients[i], w, columns[i]...));
    of_weights[lane] += static_cast<double>(w) * static_cast<double>(w);
    of_measured[lane] += measured * measured;
  };
  constexpr int64_t pack = gpu_norm_pack, round = gpu_norm_lanes * pack;
  int64_t first = 0;
  for (; first + round <= count; first += round)
    for (int64_t element = 0; element < pack; ++element)
#pragma omp simd
      for (int64_t lane = 0; lane < gpu_norm_lanes; ++lane) add(lane, first + lane * pack + element);
  for (int64_t i = first; i < count; ++i) add((i - first) / pack, i);
  sums[0] = sum_of_lanes(of_weights);
  sums[1] = sum_of_lanes(of_measured);
}

template <typename Op, size_t... column>
void measure_range(const Op& op, bool in_gpu_order, const typename Op::Formula& formula, int64_t first, int64_t end,
                   double* sums, std::index_sequence<column...>) {
  const float* gradients = row_of<float>(op.gradients, 0) + first;
  const auto measure_weights = [&](const auto* weights) {
    if (in_gpu_order)
      return measure_in_lanes(formula, gradients, weights + first, end - first, sums,
                              op.columns[column].template as<const float>() + first...);
    measure(formula, gradients, weights + first, end - first, sums,
            op.columns[column].template as<const float>() + first...);
  };
  if (op.master.rows == 0) return measure_weights(row_of<bf16>(op.weights, 0));
  measure_weights(row_of<float>(op.master, 0));
}

}  // namespace

double sum_of_squares(const Matrix& values, int64_t first, int64_t end) {
  double sum = 0;
  const auto add_up = [&](const auto* from) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; ++i)
      sum += static_cast<double>(load(from + i)) * static_cast<double>(load(from + i));
  };
  if (values.dtype == DType::bf16) {
    add_up(row_of<bf16>(values, 0));
  } else {
    add_up(row_of<float>(values, 0));
  }
  return sum;
}

void keep_gradients(const KeepGradients& op, const KeptSegment& segment, int64_t first, int64_t end) {
  for_rounded_runs(segment, first, end, static_cast<uint32_t>(op.state->updates), op.draw,
                   [&](int64_t at, int64_t count, const uint32_t* words) {
                     const float* gradients = row_of<float>(op.gradients, 0) + at;
                     bf16* sums = row_of<bf16>(op.sums, 0) + at;
                     if (op.accumulate) {
#pragma omp simd
                       for (int64_t i = 0; i < count; ++i)
                         sums[i] = stochastic_bf16(load(sums + i) + gradients[i], words[i]);
                     } else {
#pragma omp simd
                       for (int64_t i = 0; i < count; ++i) sums[i] = stochastic_bf16(gradients[i], words[i]);
                     }
                   });
}

void add_squares(const float* values, int64_t count, double* sums) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
}

void divide_by_roots(float* values, float factor, const float* moments, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) values[i] = values[i] * factor / __builtin_sqrtf(moments[i]);
}

#define GPTRAIN_UPDATE(Op)                                                                                          \
  void update(const Op& op, const Op::Formula& formula, const UpdateSegment& segment, int64_t first, int64_t end) { \
    update_range(op, formula, segment, first, end, std::make_index_sequence<Op::num_columns>());                    \
  }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE)
#undef GPTRAIN_UPDATE

#define GPTRAIN_BLOCK_UPDATE(Op)                                                                 \
  void update_blocks(const Op& op, const Op::Formula& formula, int64_t first, int64_t end) {     \
    update_each_block(op, formula, first, end, std::make_index_sequence<Op::num_columns - 2>()); \
  }
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE)
#undef GPTRAIN_BLOCK_UPDATE

#define GPTRAIN_TENSOR_NORMS(Op)                                                                                  \
  void tensor_norms(const Op& op, const Op::Update::Formula& formula, int64_t first, int64_t end, double* sums) { \
    measure_range(op.update, op.in_gpu_order, formula, first, end, sums,                                          \
                  std::make_index_sequence<Op::Update::num_columns>());                                           \
  }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS)
#undef GPTRAIN_TENSOR_NORMS

}  // namespace gptrain::ops::GPTRAIN_ISA
