// The end of a step: the norm of the gradients, the decision to skip, AdamW.
#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "kernels/update.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/gpu_scratch.h"

namespace gptrain {
namespace {

constexpr unsigned threads = 256;
constexpr int width = 4;  // elements of a thread's access: 16 bytes of f32
// Segments are cut into chunks, whatever the number of blocks: sums have one order.
constexpr int64_t chunk = gpu_norm_chunk;
constexpr int64_t most_blocks = 1024;  // several for each multiprocessor of any device

// At least one block: a rank's piece of a unit can be all padding, without a segment.
LaunchShape shape_for(int64_t chunks) { return {std::clamp<int64_t>(chunks, 1, most_blocks), threads, 0}; }

// Calls body(segment, first, end, index of the chunk) for this block's chunks: every gridDim.x-th of all segments'.
template <typename Segment, typename Body>
__device__ void for_each_chunk(const Segment* segments, int64_t num_segments, const Body& body) {
  int64_t first_of_segment = 0;
  int64_t next = blockIdx.x;
  for (int64_t i = 0; i < num_segments; ++i) {
    const int64_t chunks = (segments[i].count + chunk - 1) / chunk;
    for (; next < first_of_segment + chunks; next += gridDim.x) {
      const int64_t first = segments[i].offset + (next - first_of_segment) * chunk;
      const int64_t end_of_segment = segments[i].offset + segments[i].count;
      body(segments[i], first, first + chunk < end_of_segment ? first + chunk : end_of_segment, next);
    }
    first_of_segment += chunks;
  }
}

// Whether packs can be read from here on: segments begin where they like.
template <typename... T>
__device__ bool in_whole_packs(const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % sizeof(Pack<T, width>) == 0) && ...);
}

struct WarpSums {
  double of_warp[threads / 32];
};

// The sum over the block, on thread 0; the same order every time.
__device__ double block_sum(double value) {
  WarpSums& sums = shared<WarpSums>();
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
  if (threadIdx.x % 32 == 0) sums.of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (const double sum : sums.of_warp) total += sum;
  __syncthreads();  // before the next sum is written
  return total;
}

__global__ void chunk_norms(const SquaredNorm::Segment* segments, int64_t num_segments, const float* gradients,
                            double* sums) {
  for_each_chunk(segments, num_segments, [&](const SquaredNorm::Segment&, int64_t first, int64_t end, int64_t index) {
    double sum = 0;
    const bool packs = in_whole_packs(gradients + first);
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      if (packs && i + width <= end) {
        for (const float value : load<width>(gradients + i).at) sum += static_cast<double>(value) * value;
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest)
          sum += static_cast<double>(gradients[rest]) * gradients[rest];
      }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[index] = sum;
  });
}

// One thread for each partial adds up the chunks of its segments, in order.
__global__ void segment_norms(const SquaredNorm::Segment* segments, int64_t num_segments, const double* sums,
                              double* partials, int64_t num_partials) {
  const int64_t partial = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (partial >= num_partials) return;
  double total = 0;
  int64_t index = 0;
  for (int64_t i = 0; i < num_segments; ++i) {
    const int64_t end = index + (segments[i].count + chunk - 1) / chunk;
    if (segments[i].partial == partial)
      for (int64_t at = index; at < end; ++at) total += sums[at];
    index = end;
  }
  partials[partial] = total;
}

__global__ void decide_update(const double* partials, int64_t num_partials, double clip_norm, double log_beta1,
                              double log_beta2, int64_t loss_scale_window, StepState* state) {
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
  if (state->skip != 0) return;
  state->updates += 1;
  const auto updates = static_cast<double>(state->updates);
  // 1 - beta^updates without the cancellation that small exponents and betas near 1 would bring.
  state->bias_correction1 = static_cast<float>(-expm1(updates * log_beta1));
  state->bias_correction2 = static_cast<float>(-expm1(updates * log_beta2));
}

// What all elements of a step have in common.
struct AdamWFactors {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
  double weight_decay;
};

struct AdamWBuffers {
  const float* gradients;
  float *master, *exp_avg, *exp_avg_sq;
};

// An element's new weight; its moments become those after the update.
class AdamWStep {
 public:
  __device__ AdamWStep(const AdamWFactors& factors, const StepState& state)
      : f_(factors),
        scale_(state.gradient_scale),
        correction1_(static_cast<float>(1.0 / static_cast<double>(state.bias_correction1))),
        correction2_(static_cast<float>(1.0 / static_cast<double>(state.bias_correction2))),
        rate_(state.learning_rate) {}

  __device__ float decay_of(const AdamW::Segment& segment) const {
    return segment.decay != 0 ? static_cast<float>(static_cast<double>(rate_) * f_.weight_decay) : 0.0F;
  }
  __device__ void update(float g, float& w, float& m, float& v, float decay) const {
    g *= scale_;
    m = f_.beta1 * m + f_.one_minus_beta1 * g;
    v = f_.beta2 * v + f_.one_minus_beta2 * g * g;
    w = w - rate_ * (m * correction1_ / (sqrtf(v * correction2_) + f_.eps)) - decay * w;
  }

 private:
  AdamWFactors f_;
  float scale_, correction1_, correction2_, rate_;
};

template <typename C, bool has_weights>
__global__ void adamw(const AdamW::Segment* segments, int64_t num_segments, AdamWFactors f, const StepState* state,
                      AdamWBuffers buffers, C* weights) {
  if (state->skip != 0) return;
  const AdamWStep step(f, *state);
  for_each_chunk(segments, num_segments, [&](const AdamW::Segment& segment, int64_t first, int64_t end, int64_t) {
    const float decay = step.decay_of(segment);
    const bool packs = in_whole_packs(buffers.gradients + first, buffers.master + first, buffers.exp_avg + first,
                                      buffers.exp_avg_sq + first, weights + (has_weights ? first : 0));
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      if (packs && i + width <= end) {
        const auto g = load<width>(buffers.gradients + i);
        auto w = load<width>(buffers.master + i);
        auto m = load<width>(buffers.exp_avg + i);
        auto v = load<width>(buffers.exp_avg_sq + i);
        Pack<C, width> rounded;
        for (int n = 0; n < width; ++n) {
          step.update(g.at[n], w.at[n], m.at[n], v.at[n], decay);
          if constexpr (has_weights) rounded.at[n] = rounded_to<C>(w.at[n]);
        }
        store(buffers.master + i, w);
        store(buffers.exp_avg + i, m);
        store(buffers.exp_avg_sq + i, v);
        if constexpr (has_weights) store(weights + i, rounded);
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest) {
          step.update(buffers.gradients[rest], buffers.master[rest], buffers.exp_avg[rest], buffers.exp_avg_sq[rest],
                      decay);
          if constexpr (has_weights) weights[rest] = rounded_to<C>(buffers.master[rest]);
        }
      }
    }
  });
}

// The word that element `index` of a tensor draws (see AdamW in ops/ops.h), and its three neighbours'.
__device__ auto rounding_words(PhiloxKey key, int64_t index, int64_t updates) {
  const auto counter = static_cast<uint64_t>(index) / 4, step = static_cast<uint64_t>(updates);
  return philox(key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(step),
                      static_cast<uint32_t>(step >> 32)});
}

// Weights without masters.
__global__ void adamw_rounding(const AdamW::Segment* segments, int64_t num_segments, AdamWFactors f,
                               const StepState* state, AdamWBuffers buffers, bf16* weights) {
  if (state->skip != 0) return;
  const AdamWStep step(f, *state);
  const int64_t updates = state->updates;
  for_each_chunk(segments, num_segments, [&](const AdamW::Segment& segment, int64_t first, int64_t end, int64_t) {
    const float decay = step.decay_of(segment);
    const IndexMap& map = segment.map;
    const bool packs = in_whole_packs(buffers.gradients + first, weights + first, buffers.exp_avg + first,
                                      buffers.exp_avg_sq + first);
    for (int64_t i = first + width * threadIdx.x; i < end; i += width * blockDim.x) {
      const int64_t index = map.index(i - segment.offset);
      const auto words = rounding_words(segment.key, index, updates);
      // A pack's elements follow one another in the tensor, and draw the words of one counter.
      const bool together =
          index % width == 0 &&
          (map.cols == map.stride || (map.first + i - segment.offset) % map.cols + width <= map.cols);
      if (packs && together && i + width <= end) {
        const auto g = load<width>(buffers.gradients + i);
        auto w = load<width>(weights + i);
        auto m = load<width>(buffers.exp_avg + i);
        auto v = load<width>(buffers.exp_avg_sq + i);
#pragma unroll
        for (int n = 0; n < width; ++n) {
          float wide = to_float(w.at[n]);
          step.update(g.at[n], wide, m.at[n], v.at[n], decay);
          w.at[n] = stochastic_bf16(wide, words[static_cast<size_t>(n)]);
        }
        store(weights + i, w);
        store(buffers.exp_avg + i, m);
        store(buffers.exp_avg_sq + i, v);
      } else {
        for (int64_t rest = i; rest < end && rest < i + width; ++rest) {
          const int64_t own = map.index(rest - segment.offset);
          float wide = to_float(weights[rest]);
          step.update(buffers.gradients[rest], wide, buffers.exp_avg[rest], buffers.exp_avg_sq[rest], decay);
          const auto own_words = rounding_words(segment.key, own, updates);
          weights[rest] = stochastic_bf16(wide, own_words[static_cast<size_t>(own % 4)]);
        }
      }
    }
  });
}

AdamWFactors factors_of(const AdamW& op) {
  return {static_cast<float>(op.beta1),       static_cast<float>(1.0 - op.beta1), static_cast<float>(op.beta2),
          static_cast<float>(1.0 - op.beta2), static_cast<float>(op.eps),         op.weight_decay};
}

AdamWBuffers buffers_of(const AdamW& op) {
  return {op.gradients.as<const float>(), op.master.as<float>(), op.exp_avg.as<float>(), op.exp_avg_sq.as<float>()};
}

template <typename C, bool has_weights>
void launch_adamw(const AdamW& op, Stream stream) {
  launch(stream, shape_for(gpu_norm_chunks_bound(op.gradients.cols, op.num_segments)), adamw<C, has_weights>,
         op.segments, op.num_segments, factors_of(op), op.state, buffers_of(op), op.weights.as<C>());
}

}  // namespace

void cuda_run(const SquaredNorm& op, Stream stream, std::byte* scratch) {
  auto* const sums = reinterpret_cast<double*>(scratch);
  LaunchShape shape = shape_for(gpu_norm_chunks_bound(op.gradients.cols, op.num_segments));
  shape.shared_bytes = sizeof(WarpSums);
  launch(stream, shape, chunk_norms, op.segments, op.num_segments, op.gradients.as<const float>(), sums);
  launch(stream, {(op.partials.cols + threads - 1) / threads, threads, 0}, segment_norms, op.segments, op.num_segments,
         sums, op.partials.as<double>(), op.partials.cols);
}

void cuda_run(const PrepareUpdate& op, Stream stream) {
  launch(stream, {1, 1, 0}, decide_update, op.partials.as<const double>(), op.partials.cols, op.clip_norm,
         std::log(op.beta1), std::log(op.beta2), op.loss_scale_window, op.state);
}

void cuda_run(const AdamW& op, Stream stream) {
  if (!op.master.given()) {
    return launch(stream, shape_for(gpu_norm_chunks_bound(op.gradients.cols, op.num_segments)), adamw_rounding,
                  op.segments, op.num_segments, factors_of(op), op.state, buffers_of(op), op.weights.as<bf16>());
  }
  if (!op.weights.given()) return launch_adamw<float, false>(op, stream);
  if (op.weights.dtype == DType::f32) return launch_adamw<float, true>(op, stream);
  if (op.weights.dtype == DType::bf16) return launch_adamw<bf16, true>(op, stream);
  launch_adamw<f16, true>(op, stream);
}

}  // namespace gptrain
