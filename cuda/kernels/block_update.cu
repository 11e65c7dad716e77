// Updates with moments in 8-bit blocks (see ops/adamw_8bit.h).
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/run.h"
#include "kernels/segments.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/adamw_8bit.h"

namespace gptrain::inline cuda {
namespace {

constexpr unsigned warps_of_block = threads / 32;
constexpr int of_lane = static_cast<int>(state_block / 32);  // elements of a block per lane, 32 apart

template <bool has_sign>
struct MapTables {
  float values[256];
  uint32_t borders[256];  // lower border of each magnitude except zero

  __device__ void fill() {
    using Map = DynamicMap<has_sign>;
    const auto i = static_cast<int>(threadIdx.x);
    values[i] = Map::value(i);
    borders[i] = i > 0 && i <= Map::most ? Map::border_bits(i) : 0x7fffff00U;
  }

  __device__ uint8_t code(float value, float inverse_scale) const {
    const auto bits = std::bit_cast<uint32_t>(fabsf(value) * inverse_scale);
    unsigned n = 0;
#pragma unroll
    for (unsigned step = 128; step > 0; step /= 2) n += bits >= borders[n + step] ? step : 0;
    if (!has_sign) return static_cast<uint8_t>(n == 0 && value > 0 ? 1 : n);
    return static_cast<uint8_t>(value < 0 ? zero_code - (n < zero_code ? n : zero_code) : zero_code + n);
  }
};

template <typename Formula>
struct BlockUpdateMemory {
  Formula formula;
  MapTables<true> with_sign;
  MapTables<false> without_sign;
};

// One moment of the warp's block, in each lane's elements.
template <bool has_sign>
struct BlockMoment {
  uint8_t* codes;
  float* scales;
  float values[of_lane] = {};

  // Only lane 0 accesses the scale in memory.
  __device__ float scale(int64_t block) const {
    return __shfl_sync(0xffffffff, threadIdx.x % 32 == 0 ? scales[block] : 0.0F, 0);
  }

  __device__ void store(const MapTables<has_sign>& tables, int64_t block) {
    float largest = 0;
    for (const float value : values) largest = fmaxf(largest, fabsf(value));
    for (unsigned lanes = 16; lanes > 0; lanes /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, lanes));
    const float scale = block_scale(largest), inverse = inverse_of_scale(scale);
    const unsigned lane = threadIdx.x % 32;
    for (int k = 0; k < of_lane; ++k) codes[block * state_block + 32 * k + lane] = tables.code(values[k], inverse);
    if (lane == 0) scales[block] = scale;
  }
};

// G is the type of the gradients.
template <typename G>
struct BlockBuffers {
  const G* gradients;
  float* master;  // null: the weights themselves are updated
  float* averages;
  uint8_t* codes[2];
  float* scales[2];
};

template <bool has_average, typename Formula>
__device__ float updated_in_block(const Formula& formula, float gradient, float weight, float& m, float& v,
                                  float* averages, int64_t at) {
  if constexpr (has_average) {
    return formula.updated(gradient, weight, m, v, averages[at]);
  } else {
    return formula.updated(gradient, weight, m, v);
  }
}

// A warp takes one block at a time. C is the type of the weights, which may be null if there are master weights.
template <typename Op, typename G, typename C>
__global__ void update_blocks(const UpdateSegment* segments, int64_t num_segments, int64_t num_blocks,
                              typename Op::Formula formula, const StepState* state, BlockBuffers<G> buffers,
                              C* weights) {
  if (state->skip != 0) return;
  auto& memory = shared<BlockUpdateMemory<typename Op::Formula>>();
  memory.with_sign.fill();
  memory.without_sign.fill();
  const auto step = begun(formula, *state, memory.formula);
  const int64_t updates = state->updates;
  const unsigned lane = threadIdx.x % 32;
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / 32; block < num_blocks;
       block += static_cast<int64_t>(gridDim.x) * warps_of_block) {
    BlockMoment<true> m{buffers.codes[0], buffers.scales[0]};
    BlockMoment<false> v{buffers.codes[1], buffers.scales[1]};
    const int64_t begin = block * state_block;
    const float m_scale = m.scale(block), v_scale = v.scale(block);
    for (int64_t i = 0; i < num_segments; ++i) {
      const UpdateSegment& segment = segments[i];
      if (segment.offset >= begin + state_block || segment.offset + segment.count <= begin) continue;
      auto own = step;
      own.begin_segment(segment);
#pragma unroll
      for (int k = 0; k < of_lane; ++k) {
        const int64_t at = begin + 32 * k + lane;
        if (at < segment.offset || at >= segment.offset + segment.count) continue;
        m.values[k] = memory.with_sign.values[m.codes[at]] * m_scale;
        v.values[k] = memory.without_sign.values[v.codes[at]] * v_scale;
        const float weight = buffers.master != nullptr ? buffers.master[at] : to_float(weights[at]);
        const float w = updated_in_block<(Op::num_columns > 2)>(own, to_float(buffers.gradients[at]), weight,
                                                                m.values[k], v.values[k], buffers.averages, at);
        if (buffers.master != nullptr) {
          buffers.master[at] = w;
          if (weights != nullptr) weights[at] = rounded_to<C>(w);
        } else if constexpr (std::is_same_v<C, bf16>) {
          const int64_t index = segment.map.index(at - segment.offset);
          const auto words = rounding_words(segment.key, index, updates);
          weights[at] = stochastic_bf16(w, word_of(words, index % 4));
        }
      }
    }
    m.store(memory.with_sign, block);
    v.store(memory.without_sign, block);
  }
}

template <typename G, typename C, typename Op>
void launch_block_update(const Op& op, Stream stream) {
  const BlockBuffers<G> buffers{op.gradients.template as<const G>(),
                                op.master.template as<float>(),
                                Op::num_columns > 2 ? op.columns[2].template as<float>() : nullptr,
                                {op.columns[0].template as<uint8_t>(), op.columns[1].template as<uint8_t>()},
                                {op.scales[0].template as<float>(), op.scales[1].template as<float>()}};
  const int64_t blocks = op.gradients.cols / state_block;
  LaunchShape shape = shape_for((blocks + warps_of_block - 1) / warps_of_block);
  shape.shared_bytes = sizeof(BlockUpdateMemory<typename Op::Formula>);
  launch(stream, shape, update_blocks<Op, G, C>, op.segments, op.num_segments, blocks, typename Op::Formula(op),
         op.state, buffers, op.weights.template as<C>());
}

template <typename G, typename Op>
void run_block_update_with(const Op& op, Stream stream) {
  if (!op.weights.given() || op.weights.dtype == DType::f32) return launch_block_update<G, float>(op, stream);
  if (op.weights.dtype == DType::bf16) return launch_block_update<G, bf16>(op, stream);
  launch_block_update<G, f16>(op, stream);
}

template <typename Op>
void run_block_update(const Op& op, Stream stream) {
  if constexpr (Op::takes_bf16_gradients) {
    if (op.gradients.dtype == DType::bf16) return run_block_update_with<bf16>(op, stream);
  }
  run_block_update_with<float>(op, stream);
}

}  // namespace

#define GPTRAIN_CUDA_BLOCK_UPDATE(Op) \
  void cuda_run(const Op& op, Stream stream, std::byte*) { run_block_update(op, stream); }
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_CUDA_BLOCK_UPDATE)
#undef GPTRAIN_CUDA_BLOCK_UPDATE

}  // namespace gptrain::cuda
