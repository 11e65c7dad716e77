// Sums per tensor that some updates need (see ops/tensor_norms.h).
#include <cstdint>
#include <utility>

#include "kernels/run.h"
#include "kernels/segments.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {
namespace {

// Loop bounds and array sizes; an array has at least one element even if the loop is empty.
template <size_t n>
constexpr int count_of = static_cast<int>(n);
template <size_t n>
constexpr int num_values_of = count_of<n> > 0 ? count_of<n> : 1;

template <size_t n>
struct MeasuredBuffers {
  const float* gradients;
  const float* columns[num_values_of<n>];
};

template <typename Formula>
struct MeasuringMemory {
  Formula formula;
  WarpSums sums;
};

template <typename Formula, int num_values, size_t... column>
__device__ double square_of_measured(const Formula& formula, float gradient, float weight,
                                     const float (&values)[num_values], std::index_sequence<column...>) {
  const auto measured = static_cast<double>(formula.measured(gradient, weight, values[column]...));
  return measured * measured;
}

// Writes sums[2 c] and sums[2 c + 1] for chunk c. W is f32 or bf16.
template <typename Formula, typename W, size_t n>
__global__ void measure_chunks(const UpdateSegment* segments, int64_t num_segments, Formula formula,
                               const StepState* state, MeasuredBuffers<n> buffers, const W* weights, double* sums) {
  if (state->skip != 0) return;
  auto& memory = shared<MeasuringMemory<Formula>>();
  const auto step = begun(formula, *state, memory.formula);
  for_each_chunk(segments, num_segments, [&](const UpdateSegment& segment, int64_t first, int64_t end, int64_t index) {
    auto own = step;
    own.begin_measuring(segment);
    double of_weights = 0, of_measured = 0;
    const auto add = [&](float gradient, float weight, const float(&values)[num_values_of<n>]) {
      of_weights += static_cast<double>(weight) * weight;
      of_measured += square_of_measured(own, gradient, weight, values, std::make_index_sequence<n>());
    };
    bool packs = in_whole_packs(buffers.gradients + first, weights + first);
    for (int c = 0; c < count_of<n>; ++c) packs = packs && in_whole_packs(buffers.columns[c] + first);
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      float values[num_values_of<n>] = {};
      if (packs && i + width <= end) {
        const auto g = load<width>(buffers.gradients + i);
        const auto w = load<width>(weights + i);
        Pack<float, width> columns[num_values_of<n>];
#pragma unroll
        for (int c = 0; c < count_of<n>; ++c) columns[c] = load<width>(buffers.columns[c] + i);
#pragma unroll
        for (int k = 0; k < width; ++k) {
          for (int c = 0; c < count_of<n>; ++c) values[c] = columns[c].at[k];
          add(g.at[k], to_float(w.at[k]), values);
        }
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest) {
          for (int c = 0; c < count_of<n>; ++c) values[c] = buffers.columns[c][rest];
          add(buffers.gradients[rest], to_float(weights[rest]), values);
        }
      }
    }
    of_weights = block_sum(of_weights, memory.sums);
    of_measured = block_sum(of_measured, memory.sums);
    if (threadIdx.x == 0) {
      sums[2 * index] = of_weights;
      sums[2 * index + 1] = of_measured;
    }
  });
}

// One block per sum adds the chunks of a tensor.
__global__ void add_chunks(const UpdateSegment* segments, int64_t num_segments, const StepState* state,
                           const double* of_chunks, int64_t first_tensor, double* sums) {
  const int64_t tensor = first_tensor + blockIdx.x / 2;
  const double total = sum_of_chunks(segments, state->skip == 0 ? num_segments : 0, of_chunks + blockIdx.x % 2, 2,
                                     [=](const UpdateSegment& segment) { return segment.tensor == tensor; });
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

template <typename W, typename Update>
void measure(const Update& update, const W* weights, Stream stream, double* of_chunks) {
  using Formula = typename Update::Formula;
  MeasuredBuffers<Update::num_columns> buffers{update.gradients.template as<const float>(), {}};
  for (int i = 0; i < count_of<Update::num_columns>; ++i)
    buffers.columns[i] = update.columns[static_cast<size_t>(i)].template as<const float>();
  LaunchShape shape = shape_for(gpu_norm_chunks_bound(update.gradients.cols, update.num_segments));
  shape.shared_bytes = sizeof(MeasuringMemory<Formula>);
  launch(stream, shape, measure_chunks<Formula, W, Update::num_columns>, update.segments, update.num_segments,
         Formula(update), update.state, buffers, weights, of_chunks);
}

template <typename Op>
void run_tensor_norms(const Op& op, Stream stream, std::byte* scratch) {
  auto* const of_chunks = reinterpret_cast<double*>(scratch);
  const auto& update = op.update;
  if (update.master.given()) {
    measure(update, update.master.template as<const float>(), stream, of_chunks);
  } else {
    measure(update, update.weights.template as<const bf16>(), stream, of_chunks);
  }
  launch(stream, {op.sums.count(), threads, sizeof(WarpSums)}, add_chunks, update.segments, update.num_segments,
         update.state, of_chunks, op.first_tensor, op.sums.template as<double>());
}

}  // namespace

#define GPTRAIN_CUDA_TENSOR_NORMS(Op) \
  void cuda_run(const Op& op, Stream stream, std::byte* scratch) { run_tensor_norms(op, stream, scratch); }
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_CUDA_TENSOR_NORMS)
#undef GPTRAIN_CUDA_TENSOR_NORMS

}  // namespace gptrain::cuda
