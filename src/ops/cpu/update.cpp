#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline ops {
namespace {

// Elements of a chunk of a segment, the same for any number of threads and on a GPU.
constexpr int64_t chunk = gpu_norm_chunk;

int64_t num_chunks(int64_t count) { return (count + chunk - 1) / chunk; }

template <typename Segment>
int64_t total_chunks(const Segment* segments, int64_t num_segments) {
  int64_t total = 0;
  for (int64_t i = 0; i < num_segments; ++i) total += num_chunks(segments[i].count);
  return total;
}

// Calls body(segment, first, end, index of the chunk) for the chunks of all segments, divided among threads.
template <typename Segment, typename Body>
void for_each_chunk(int num_threads, const Segment* segments, int64_t num_segments, const Body& body) {
  parallel_shares(num_threads, total_chunks(segments, num_segments), [&](int64_t first, int64_t end) {
    int64_t index = 0;  // index of the segment's first chunk
    for (int64_t i = 0; i < num_segments && index < end; index += num_chunks(segments[i].count), ++i) {
      const int64_t end_of_segment = segments[i].offset + segments[i].count;
      const int64_t end_here = std::min(end, index + num_chunks(segments[i].count));
      for (int64_t at = std::max(first, index); at < end_here; ++at) {
        const int64_t from = segments[i].offset + (at - index) * chunk;
        body(segments[i], from, std::min(from + chunk, end_of_segment), at);
      }
    }
  });
}

}  // namespace

// RETURNS the bytes of one partial sum for each chunk. Segment sizes are unknown here; each segment has at most one
// partial chunk.
int64_t cpu_scratch_bytes(const SquaredNorm& op, int) {
  return (op.gradients.cols / chunk + op.num_segments) * dtype_bytes(DType::f64);
}

void cpu_run(const SquaredNorm& op, const CpuContext& context) {
  auto* const sums = reinterpret_cast<double*>(context.scratch);
  for_each_chunk(context.num_threads, op.segments, op.num_segments,
                 [&](const SquaredNorm::Segment&, int64_t first, int64_t end, int64_t index) {
                   sums[index] = context.kernels->sum_of_squares(op.gradients, first, end);
                 });
  auto* const partials = op.partials.as<double>();
  std::fill_n(partials, op.partials.cols, 0.0);
  int64_t index = 0;
  for (int64_t i = 0; i < op.num_segments; ++i) {
    const int64_t end = index + num_chunks(op.segments[i].count);
    for (; index < end; ++index) partials[op.segments[i].partial] += sums[index];
  }
}

void cpu_run(const PrepareUpdate& op, const CpuContext&) {
  StepState& state = *op.state;
  double squared_norm = 0;
  for (int64_t i = 0; i < op.partials.cols; ++i) squared_norm += op.partials.as<const double>()[i];
  const auto loss_scale = static_cast<double>(state.loss_scale.value);
  squared_norm /= loss_scale * loss_scale;
  state.squared_norm = squared_norm;
  state.skip = std::isfinite(state.loss_sum) && std::isfinite(squared_norm) ? 0 : 1;
  const double norm = std::sqrt(squared_norm);
  state.gradient_scale = op.clip_norm > 0 && norm > op.clip_norm ? static_cast<float>(op.clip_norm / norm) : 1.0F;
  state.gradient_scale /= state.loss_scale.value;
  state.step_loss_scale = state.loss_scale.value;
  if (op.loss_scale_window > 0) {
    // Assigns field by field, not the whole struct, which might change padding bytes between the fields.
    const LossScale next = next_loss_scale(state.loss_scale, state.skip != 0, op.loss_scale_window);
    state.loss_scale.value = next.value;
    state.loss_scale.good_steps = next.good_steps;
  }
  if (state.skip == 0) state.updates += 1;
  if (!op.scores.given()) return;
  const float *const scores = op.scores.as<const float>(), threshold = static_cast<float>(op.score_threshold);
  state.largest_score = *std::max_element(scores, scores + op.scores.cols);
  const auto above =
      std::count_if(scores, scores + op.scores.cols, [threshold](float score) { return score > threshold; });
  state.clipped_heads = state.skip == 0 ? static_cast<int32_t>(above) : 0;
}

void cpu_run(const ClipHeads& op, const CpuContext& context) {
  if (op.state->skip != 0) return;
  const auto threshold = static_cast<float>(op.threshold);
  for_each_chunk(context.num_threads, op.segments, op.num_segments,
                 [&](const HeadSegment& segment, int64_t first, int64_t end, int64_t) {
                   const float factor = segment.factor(op.largest.as<const float>(), threshold);
                   if (factor == 1) return;
                   const Matrix master = op.master.column_range(first, end - first);
                   std::for_each_n(master.as<float>(), master.cols, [factor](float& weight) { weight *= factor; });
                   if (!op.weights.given()) return;
                   context.kernels->cast({.from = master, .to = op.weights.column_range(first, end - first)}, 0, 0,
                                         master.cols);
                 });
}

void cpu_run(const KeepGradients& op, const CpuContext& context) {
  for_each_chunk(context.num_threads, op.segments, op.num_segments,
                 [&](const KeptSegment& segment, int64_t first, int64_t end, int64_t) {
                   context.kernels->keep_gradients(op, segment, first, end);
                 });
}

// `kernel`: the selected kernel table's.
template <typename Op, typename Kernel>
void run_update(const Op& op, const CpuContext& context, const Kernel& kernel) {
  if (op.state->skip != 0) return;
  typename Op::Formula formula(op);
  formula.begin_step(*op.state);
  for_each_chunk(context.num_threads, op.segments, op.num_segments,
                 [&](const UpdateSegment& segment, int64_t first, int64_t end, int64_t) {
                   auto own = formula;
                   own.begin_segment(segment);
                   kernel(op, own, segment, first, end);
                 });
}

#define GPTRAIN_CPU_UPDATE(Op) \
  void cpu_run(const Op& op, const CpuContext& context) { run_update(op, context, context.kernels->update_##Op); }
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_CPU_UPDATE)
#undef GPTRAIN_CPU_UPDATE

#define GPTRAIN_CPU_BLOCK_UPDATE(Op)                                                                             \
  void cpu_run(const Op& op, const CpuContext& context) {                                                        \
    if (op.state->skip != 0) return;                                                                             \
    Op::Formula formula(op);                                                                                     \
    formula.begin_step(*op.state);                                                                               \
    parallel_shares(context.num_threads, op.gradients.cols / state_block,                                        \
                    [&](int64_t first, int64_t end) { context.kernels->update_##Op(op, formula, first, end); }); \
  }
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_CPU_BLOCK_UPDATE)
#undef GPTRAIN_CPU_BLOCK_UPDATE

// Adds up the sums of a tensor's chunks in the order of `add_chunks` of the CUDA backend (ops/gpu_scratch.h).
double sum_in_lanes(const UpdateSegment* segments, int64_t num_segments, int64_t tensor, const double* of_chunks) {
  double of_lanes[gpu_norm_lanes] = {};
  int64_t index = 0;
  for (int64_t i = 0; i < num_segments; ++i) {
    const int64_t chunks = num_chunks(segments[i].count);
    for (int64_t at = 0; segments[i].tensor == tensor && at < chunks; ++at)
      of_lanes[at % gpu_norm_lanes] += of_chunks[2 * (index + at)];
    index += chunks;
  }
  return sum_of_lanes(of_lanes);
}

// `kernel`: the selected kernel table's.
template <typename Op, typename Kernel>
void run_tensor_norms(const Op& op, const CpuContext& context, const Kernel& kernel) {
  auto* const sums = op.sums.template as<double>();
  std::fill_n(sums, op.sums.count(), 0.0);
  const auto& update = op.update;
  if (update.state->skip != 0) return;
  auto* const of_chunks = reinterpret_cast<double*>(context.scratch);
  typename Op::Update::Formula formula(update);
  formula.begin_step(*update.state);
  for_each_chunk(context.num_threads, update.segments, update.num_segments,
                 [&](const UpdateSegment& segment, int64_t first, int64_t end, int64_t index) {
                   auto own = formula;
                   own.begin_measuring(segment);
                   kernel(op, own, first, end, of_chunks + 2 * index);
                 });
  if (op.in_gpu_order) {
    for (int64_t number = 0; number < op.sums.count(); ++number)
      sums[number] =
          sum_in_lanes(update.segments, update.num_segments, op.first_tensor + number / 2, of_chunks + number % 2);
    return;
  }
  int64_t index = 0;
  for (int64_t i = 0; i < update.num_segments; ++i) {
    double* const of_tensor = sums + 2 * (update.segments[i].tensor - op.first_tensor);
    const int64_t end = index + num_chunks(update.segments[i].count);
    for (; index < end; ++index) {
      of_tensor[0] += of_chunks[2 * index];
      of_tensor[1] += of_chunks[2 * index + 1];
    }
  }
}

#define GPTRAIN_CPU_TENSOR_NORMS(Op)                                                                  \
  int64_t cpu_scratch_bytes(const Op& op, int) {                                                      \
    return 2 * (op.update.gradients.cols / chunk + op.update.num_segments) * dtype_bytes(DType::f64); \
  }                                                                                                   \
  void cpu_run(const Op& op, const CpuContext& context) { run_tensor_norms(op, context, context.kernels->norms_##Op); }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_CPU_TENSOR_NORMS)
#undef GPTRAIN_CPU_TENSOR_NORMS

}  // namespace gptrain::ops
