// The end of a step: gradient norm, decision to skip, optimizer updates.
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/rows.h"
#include "kernels/run.h"
#include "kernels/segments.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

__device__ inline double square(float value) { return static_cast<double>(value) * value; }

template <typename G>
__global__ void chunk_norms(const SquaredNorm::Segment* segments, int64_t num_segments, const G* gradients,
                            double* sums) {
  for_each_chunk(segments, num_segments, [&](const SquaredNorm::Segment&, int64_t first, int64_t end, int64_t index) {
    double sum = 0;
    const bool packs = in_whole_packs(gradients + first);
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      if (packs && i + width <= end) {
        // Sums each pack by itself, as additions to one sum wait for each other.
        const auto pack = load<width>(gradients + i);
        double halves[2] = {};
#pragma unroll
        for (int k = 0; k < width; ++k) halves[k % 2] += square(to_float(pack.at[k]));
        sum += halves[0] + halves[1];
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest) sum += square(to_float(gradients[rest]));
      }
    }
    sum = block_sum(sum, shared<WarpSums>());
    if (threadIdx.x == 0) sums[index] = sum;
  });
}

// Each thread block computes one partial.
__global__ void segment_norms(const SquaredNorm::Segment* segments, int64_t num_segments, const double* sums,
                              double* partials) {
  const int64_t partial = blockIdx.x;
  const double total = sum_of_chunks(segments, num_segments, sums, 1,
                                     [=](const SquaredNorm::Segment& segment) { return segment.partial == partial; });
  if (threadIdx.x == 0) partials[partial] = total;
}

// The largest attention score of each head; count 0: none.
struct HeadScores {
  const float* of_heads;
  int64_t count;
  float threshold;
};

__global__ void decide_update(const double* partials, int64_t num_partials, double clip_norm, int64_t loss_scale_window,
                              StepState* state, HeadScores scores) {
  double squared_norm = 0;
  for (int64_t i = 0; i < num_partials; ++i) squared_norm += partials[i];
  const auto loss_scale = static_cast<double>(state->loss_scale.value);
  squared_norm /= loss_scale * loss_scale;
  state->squared_norm = squared_norm;
  state->skip = std::isfinite(state->loss_sum) && std::isfinite(squared_norm) ? 0 : 1;
  const double norm = sqrt(squared_norm);
  state->gradient_scale = clip_norm > 0 && norm > clip_norm ? static_cast<float>(clip_norm / norm) : 1.0F;
  state->gradient_scale /= state->loss_scale.value;
  state->step_loss_scale = state->loss_scale.value;
  if (loss_scale_window > 0)
    state->loss_scale = next_loss_scale(state->loss_scale, state->skip != 0, loss_scale_window);
  if (state->skip == 0) state->updates += 1;
  if (scores.count == 0) return;
  float largest = scores.of_heads[0];
  int32_t above = 0;
  for (int64_t i = 0; i < scores.count; ++i) {
    largest = fmaxf(largest, scores.of_heads[i]);
    above += scores.of_heads[i] > scores.threshold ? 1 : 0;
  }
  state->largest_score = largest;
  state->clipped_heads = state->skip == 0 ? above : 0;
}

template <typename C>
__global__ void clip_heads(const HeadSegment* segments, int64_t num_segments, const StepState* state,
                           const float* largest, float threshold, float* master, C* weights) {
  if (state->skip != 0) return;
  for_each_chunk(segments, num_segments, [&](const HeadSegment& segment, int64_t first, int64_t end, int64_t) {
    const float factor = segment.factor(largest, threshold);
    if (factor == 1) return;
    for (int64_t i = first + threadIdx.x; i < end; i += blockDim.x) {
      master[i] *= factor;
      if (weights != nullptr) weights[i] = rounded_to<C>(master[i]);
    }
  });
}

// Loop bounds and array sizes; an array has at least one element even if the loop is empty.
template <typename Op>
constexpr int column_count = static_cast<int>(Op::num_columns);
template <typename Op>
constexpr int column_room = column_count<Op> > 0 ? column_count<Op> : 1;

// G is the type of the gradients.
template <typename G, size_t n>
struct UpdateBuffers {
  const G* gradients;
  float* master;
  float* columns[n > 0 ? n : 1];
};

// Calls the formula with of(column) for each column's element.
template <typename Formula, typename Of, size_t... column>
__device__ float updated(const Formula& formula, float gradient, float weight, const Of& of,
                         std::index_sequence<column...>) {
  return formula.updated(gradient, weight, of(column)...);
}

template <typename Op, typename G, typename C, bool has_weights>
__global__ void update(const UpdateSegment* segments, int64_t num_segments, typename Op::Formula formula,
                       const StepState* state, UpdateBuffers<G, Op::num_columns> buffers, C* weights) {
  if (state->skip != 0) return;
  constexpr size_t n = Op::num_columns;
  constexpr std::make_index_sequence<n> columns;
  const auto step = begun(formula, *state, shared<typename Op::Formula>());
  for_each_chunk(segments, num_segments, [&](const UpdateSegment& segment, int64_t first, int64_t end, int64_t) {
    auto own = step;
    own.begin_segment(segment);
    bool packs = in_whole_packs(buffers.gradients + first, buffers.master + first, weights + (has_weights ? first : 0));
    for (int c = 0; c < column_count<Op>; ++c) packs = packs && in_whole_packs(buffers.columns[c] + first);
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      if (packs && i + width <= end) {
        const auto g = load<width>(buffers.gradients + i);
        auto w = load<width>(buffers.master + i);
        Pack<float, width> values[column_room<Op>];
#pragma unroll
        for (int c = 0; c < column_count<Op>; ++c) values[c] = load<width>(buffers.columns[c] + i);
        Pack<C, width> rounded;
#pragma unroll
        for (int k = 0; k < width; ++k) {
          const auto of = [&](size_t c) -> float& { return values[c].at[k]; };
          w.at[k] = updated(own, to_float(g.at[k]), w.at[k], of, columns);
          if constexpr (has_weights) rounded.at[k] = rounded_to<C>(w.at[k]);
        }
        store(buffers.master + i, w);
#pragma unroll
        for (int c = 0; c < column_count<Op>; ++c) store(buffers.columns[c] + i, values[c]);
        if constexpr (has_weights) store(weights + i, rounded);
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest) {
          const auto of = [&](size_t c) -> float& { return buffers.columns[c][rest]; };
          buffers.master[rest] = updated(own, to_float(buffers.gradients[rest]), buffers.master[rest], of, columns);
          if constexpr (has_weights) weights[rest] = rounded_to<C>(buffers.master[rest]);
        }
      }
    }
  });
}

// Updates weights without master weights, by stochastic rounding.
template <typename Op, typename G>
__global__ void update_rounding(const UpdateSegment* segments, int64_t num_segments, typename Op::Formula formula,
                                const StepState* state, UpdateBuffers<G, Op::num_columns> buffers, bf16* weights) {
  if (state->skip != 0) return;
  constexpr size_t n = Op::num_columns;
  constexpr std::make_index_sequence<n> columns;
  const auto step = begun(formula, *state, shared<typename Op::Formula>());
  const int64_t updates = state->updates;
  for_each_chunk(segments, num_segments, [&](const UpdateSegment& segment, int64_t first, int64_t end, int64_t) {
    auto own = step;
    own.begin_segment(segment);
    const IndexMap& map = segment.map;
    bool packs = in_whole_packs(buffers.gradients + first, weights + first);
    for (int c = 0; c < column_count<Op>; ++c) packs = packs && in_whole_packs(buffers.columns[c] + first);
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      const int64_t index = map.index(i - segment.offset);
      const auto words = rounding_words(segment.key, index, updates);
      if (packs && is_one_counter(map, i - segment.offset) && i + width <= end) {
        const auto g = load<width>(buffers.gradients + i);
        auto w = load<width>(weights + i);
        Pack<float, width> values[column_room<Op>];
#pragma unroll
        for (int c = 0; c < column_count<Op>; ++c) values[c] = load<width>(buffers.columns[c] + i);
#pragma unroll
        for (int k = 0; k < width; ++k) {
          const auto of = [&](size_t c) -> float& { return values[c].at[k]; };
          const float wide = updated(own, to_float(g.at[k]), to_float(w.at[k]), of, columns);
          w.at[k] = stochastic_bf16(wide, words[static_cast<size_t>(k)]);
        }
        store(weights + i, w);
#pragma unroll
        for (int c = 0; c < column_count<Op>; ++c) store(buffers.columns[c] + i, values[c]);
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest) {
          const int64_t index_of_rest = map.index(rest - segment.offset);
          const auto of = [&](size_t c) -> float& { return buffers.columns[c][rest]; };
          const float wide = updated(own, to_float(buffers.gradients[rest]), to_float(weights[rest]), of, columns);
          const auto own_words = rounding_words(segment.key, index_of_rest, updates);
          weights[rest] = stochastic_bf16(wide, word_of(own_words, index_of_rest % 4));
        }
      }
    }
  });
}

// Adds a micro-batch's gradients to the stored bf16 sum.
template <bool accumulate>
__global__ void keep(const KeptSegment* segments, int64_t num_segments, const float* gradients, bf16* sums,
                     const StepState* state, uint32_t draw) {
  const auto updates = static_cast<uint32_t>(state->updates);
  for_each_chunk(segments, num_segments, [&](const KeptSegment& segment, int64_t first, int64_t end, int64_t) {
    const IndexMap& map = segment.map;
    const bool packs = in_whole_packs(gradients + first, sums + first);
    const auto words_of = [&](int64_t index) {
      const auto counter = static_cast<uint64_t>(index) / 4;
      return philox(segment.key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), updates, draw});
    };
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      const int64_t index = map.index(i - segment.offset);
      if (packs && is_one_counter(map, i - segment.offset) && i + width <= end) {
        const auto words = words_of(index);
        const auto g = load<width>(gradients + i);
        Pack<bf16, width> sum;
        if constexpr (accumulate) sum = load<width>(sums + i);
#pragma unroll
        for (int k = 0; k < width; ++k)
          sum.at[k] =
              stochastic_bf16(accumulate ? to_float(sum.at[k]) + g.at[k] : g.at[k], words[static_cast<size_t>(k)]);
        store(sums + i, sum);
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest) {
          const int64_t index_of_rest = map.index(rest - segment.offset);
          const auto words = words_of(index_of_rest);
          const float sum = accumulate ? to_float(sums[rest]) + gradients[rest] : gradients[rest];
          sums[rest] = stochastic_bf16(sum, word_of(words, index_of_rest % 4));
        }
      }
    }
  });
}

template <typename G, typename Op>
UpdateBuffers<G, Op::num_columns> buffers_of(const Op& op) {
  UpdateBuffers<G, Op::num_columns> buffers{op.gradients.template as<const G>(), op.master.template as<float>(), {}};
  for (int i = 0; i < column_count<Op>; ++i)
    buffers.columns[i] = op.columns[static_cast<size_t>(i)].template as<float>();
  return buffers;
}

template <typename Op>
LaunchShape update_shape(const Op& op) {
  LaunchShape shape = shape_for(gpu_norm_chunks_bound(op.gradients.cols, op.num_segments));
  shape.shared_bytes = sizeof(typename Op::Formula);
  return shape;
}

template <typename G, typename C, bool has_weights, typename Op>
void launch_update(const Op& op, Stream stream) {
  launch(stream, update_shape(op), update<Op, G, C, has_weights>, op.segments, op.num_segments,
         typename Op::Formula(op), op.state, buffers_of<G>(op), op.weights.template as<C>());
}

template <typename G, typename Op>
void run_update_with(const Op& op, Stream stream) {
  if (!op.master.given()) {
    return launch(stream, update_shape(op), update_rounding<Op, G>, op.segments, op.num_segments,
                  typename Op::Formula(op), op.state, buffers_of<G>(op), op.weights.template as<bf16>());
  }
  if (!op.weights.given()) return launch_update<G, float, false>(op, stream);
  if (op.weights.dtype == DType::f32) return launch_update<G, float, true>(op, stream);
  if (op.weights.dtype == DType::bf16) return launch_update<G, bf16, true>(op, stream);
  launch_update<G, f16, true>(op, stream);
}

template <typename Op>
void run_update(const Op& op, Stream stream) {
  if constexpr (Op::takes_bf16_gradients) {
    if (op.gradients.dtype == DType::bf16) return run_update_with<bf16>(op, stream);
  }
  run_update_with<float>(op, stream);
}

}  // namespace

void cuda_run(const SquaredNorm& op, Stream stream, std::byte* scratch) {
  auto* const sums = reinterpret_cast<double*>(scratch);
  LaunchShape shape = shape_for(gpu_norm_chunks_bound(op.gradients.cols, op.num_segments));
  shape.shared_bytes = sizeof(WarpSums);
  if (op.gradients.dtype == DType::bf16) {
    launch(stream, shape, chunk_norms<bf16>, op.segments, op.num_segments, op.gradients.as<const bf16>(), sums);
  } else {
    launch(stream, shape, chunk_norms<float>, op.segments, op.num_segments, op.gradients.as<const float>(), sums);
  }
  launch(stream, {op.partials.cols, threads, sizeof(WarpSums)}, segment_norms, op.segments, op.num_segments, sums,
         op.partials.as<double>());
}

void cuda_run(const PrepareUpdate& op, Stream stream, std::byte*) {
  launch(stream, {1, 1, 0}, decide_update, op.partials.as<const double>(), op.partials.cols, op.clip_norm,
         op.loss_scale_window, op.state,
         HeadScores{op.scores.as<const float>(), op.scores.cols, static_cast<float>(op.score_threshold)});
}

void cuda_run(const ClipHeads& op, Stream stream, std::byte*) {
  const auto start = [&](auto* weights) {
    launch(stream, shape_for(gpu_norm_chunks_bound(op.master.cols, op.num_segments)),
           clip_heads<std::remove_pointer_t<decltype(weights)>>, op.segments, op.num_segments, op.state,
           op.largest.as<const float>(), static_cast<float>(op.threshold), op.master.as<float>(), weights);
  };
  if (!op.weights.given()) return start(static_cast<float*>(nullptr));
  with_type(op.weights.dtype, [&](auto type) { start(op.weights.as<decltype(type)>()); });
}

void cuda_run(const KeepGradients& op, Stream stream, std::byte*) {
  const auto start = [&](auto kernel) {
    launch(stream, shape_for(gpu_norm_chunks_bound(op.gradients.cols, op.num_segments)), kernel, op.segments,
           op.num_segments, op.gradients.as<const float>(), op.sums.as<bf16>(), op.state, op.draw);
  };
  if (op.accumulate) return start(keep<true>);
  start(keep<false>);
}

#define GPTRAIN_CUDA_UPDATE(Op) \
  void cuda_run(const Op& op, Stream stream, std::byte*) { run_update(op, stream); }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_CUDA_UPDATE)
#undef GPTRAIN_CUDA_UPDATE

}  // namespace gptrain::cuda
