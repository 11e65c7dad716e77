// Updates with moments in 8-bit blocks (see ops/adamw_8bit.h).
#include <bit>
#include <cstdint>

#include "base/dynamic_map.h"
#include "kernels/run.h"
#include "kernels/segments.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/adamw_8bit.h"

namespace gptrain::inline cuda {
namespace {

constexpr unsigned warps_of_block = threads / 32;
constexpr int packs_of_lane = static_cast<int>(state_block / (32 * width));  // packs of a block per lane, 32 apart

// Tables of both moments' codes. Blocks copy them into shared memory, where lanes read different entries at once.
struct alignas(16) MapTables {
  DecodeTable<true> decode_signed;
  DecodeTable<false> decode_unsigned;
  EncodeTable<true> encode_signed;
  EncodeTable<false> encode_unsigned;
};

__device__ const MapTables map_tables = {make_decode_table<true>(), make_decode_table<false>(),
                                         make_encode_table<true>(), make_encode_table<false>()};

template <typename Formula>
struct BlockUpdateMemory {
  MapTables tables;
  Formula formula;
};

// Returns the code that code_of (base/dynamic_map.h) returns.
template <bool has_sign>
__device__ uint8_t code_in(const EncodeTable<has_sign>& table, float value, float inverse) {
  constexpr auto first = static_cast<int32_t>(EncodeTable<has_sign>::first);
  constexpr auto last = static_cast<int32_t>(EncodeTable<has_sign>::last);
  const auto bits = std::bit_cast<int32_t>(fabsf(value) * inverse);
  const int32_t at = bits >> 16 < first ? first : bits >> 16 > last ? last : bits >> 16;
  const auto entry = static_cast<int32_t>(table.entries[at - first]);
  const int32_t n = (entry & 255) + (bits >= (entry & ~255) ? 1 : 0);
  if (!has_sign) return static_cast<uint8_t>(n == 0 && value > 0 ? 1 : n);
  return static_cast<uint8_t>(value < 0 ? zero_code - (n < zero_code ? n : zero_code) : zero_code + n);
}

// The elements of a pack that belong to a segment.
struct PackPart {
  int64_t at;      // element of the pack's first
  int first, end;  // indices of the segment's elements in the pack
  bool whole;      // the pack is the segment's, and can be accessed at once

  __device__ PackPart(int64_t at_, const UpdateSegment& segment, bool packs)
      : at(at_),
        first(clamped(segment.offset - at)),
        end(clamped(segment.offset + segment.count - at)),
        whole(packs && first == 0 && end == width) {}

  __device__ bool holds(int k) const { return k >= first && k < end; }

  template <typename T>
  __device__ Pack<T, width> read(const T* from) const {
    if (whole) return load<width>(from + at);
    Pack<T, width> values{};
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (holds(k)) values.at[k] = from[at + k];
    return values;
  }
  template <typename T>
  __device__ void write(T* to, const Pack<T, width>& values) const {
    if (whole) return store(to + at, values);
#pragma unroll
    for (int k = 0; k < width; ++k)
      if (holds(k)) to[at + k] = values.at[k];
  }

 private:
  __device__ static int clamped(int64_t elements) {
    return elements < 0 ? 0 : elements > width ? width : static_cast<int>(elements);
  }
};

// Returns the segment's elements of the pack, rounded stochastically.
__device__ Pack<bf16, width> stochastically_rounded(const PackPart& part, const Pack<float, width>& wide,
                                                    const UpdateSegment& segment, int64_t updates) {
  Pack<bf16, width> rounded{};
  const int64_t first = part.at - segment.offset;
  if (part.whole && is_one_counter(segment.map, first)) {
    const auto words = rounding_words(segment.key, segment.map.index(first), updates);
#pragma unroll
    for (int k = 0; k < width; ++k) rounded.at[k] = stochastic_bf16(wide.at[k], words[static_cast<size_t>(k)]);
    return rounded;
  }
#pragma unroll
  for (int k = 0; k < width; ++k) {
    if (!part.holds(k)) continue;
    const int64_t index = segment.map.index(first + k);
    const auto words = rounding_words(segment.key, index, updates);
    rounded.at[k] = stochastic_bf16(wide.at[k], word_of(words, index % 4));
  }
  return rounded;
}

// One moment of the warp's block, in each lane's elements.
template <bool has_sign>
struct BlockMoment {
  uint8_t* codes;
  float* scales;
  float values[packs_of_lane][width] = {};

  // Only lane 0 accesses the scale in memory.
  __device__ float scale(int64_t block) const {
    return __shfl_sync(0xffffffff, threadIdx.x % 32 == 0 ? scales[block] : 0.0F, 0);
  }

  __device__ void store(const EncodeTable<has_sign>& table, int64_t block, bool packs) {
    float largest = 0;
    for (const auto& pack : values)
      for (const float value : pack) largest = fmaxf(largest, fabsf(value));
    for (unsigned lanes = 16; lanes > 0; lanes /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, lanes));
    const float scale = block_scale(largest), inverse = inverse_of_scale(scale);
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < packs_of_lane; ++p) {
      Pack<uint8_t, width> pack;
#pragma unroll
      for (int k = 0; k < width; ++k) pack.at[k] = code_in(table, values[p][k], inverse);
      const UpdateSegment whole{.offset = block * state_block, .count = state_block, .decay = 0};
      PackPart(block * state_block + width * (32 * p + lane), whole, packs).write(codes, pack);
    }
    if (lane == 0) scales[block] = scale;
  }
};

// G is the type of the gradients, C of the weights. Without masters the weights, in bf16, are updated themselves.
template <typename G, typename C, bool has_master>
struct BlockBuffers {
  const G* gradients;
  float* master;
  C* weights;       // null: there are only master weights
  float* averages;  // null: the formula has none
  uint8_t* codes[2];
  float* scales[2];

  // Blocks start at multiples of a pack.
  __device__ bool in_packs() const { return in_whole_packs(gradients, master, weights, averages, codes[0], codes[1]); }
  __device__ Pack<float, width> read_weights(const PackPart& part) const {
    if constexpr (has_master) {
      return part.read(master);
    } else {
      const auto rounded = part.read(weights);
      Pack<float, width> wide;
#pragma unroll
      for (int k = 0; k < width; ++k) wide.at[k] = to_float(rounded.at[k]);
      return wide;
    }
  }
  __device__ void write_weights(const PackPart& part, const Pack<float, width>& wide, const UpdateSegment& segment,
                                int64_t updates) const {
    if constexpr (has_master) {
      part.write(master, wide);
      if (weights == nullptr) return;
      Pack<C, width> rounded;
#pragma unroll
      for (int k = 0; k < width; ++k) rounded.at[k] = rounded_to<C>(wide.at[k]);
      part.write(weights, rounded);
    } else {
      part.write(weights, stochastically_rounded(part, wide, segment, updates));
    }
  }
};

template <bool has_average, typename Formula>
__device__ float updated_in_block(const Formula& formula, float gradient, float weight, float& m, float& v,
                                  float& average) {
  if constexpr (has_average) {
    return formula.updated(gradient, weight, m, v, average);
  } else {
    return formula.updated(gradient, weight, m, v);
  }
}

// A warp takes one block at a time. Segments are in the order of their offsets.
template <typename Op, typename G, typename C, bool has_master>
__global__ void __launch_bounds__(threads, has_master&& Op::num_columns == 2 ? 3 : 2)
    update_blocks(const UpdateSegment* segments, int64_t num_segments, int64_t num_blocks, typename Op::Formula formula,
                  const StepState* state, BlockBuffers<G, C, has_master> buffers) {
  if (state->skip != 0) return;
  constexpr bool has_average = Op::num_columns > 2;
  auto& memory = shared<BlockUpdateMemory<typename Op::Formula>>();
  for (unsigned i = threadIdx.x; i < sizeof(MapTables) / 16; i += threads)
    reinterpret_cast<Pack<uint32_t, 4>*>(&memory.tables)[i] =
        reinterpret_cast<const Pack<uint32_t, 4>*>(&map_tables)[i];
  const auto step = begun(formula, *state, memory.formula);
  const MapTables& tables = memory.tables;
  const int64_t updates = state->updates;
  const bool packs = buffers.in_packs();
  int64_t first_segment = 0;  // first one that ends behind the block's begin
  for (int64_t block = static_cast<int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / 32; block < num_blocks;
       block += static_cast<int64_t>(gridDim.x) * warps_of_block) {
    BlockMoment<true> m{buffers.codes[0], buffers.scales[0]};
    BlockMoment<false> v{buffers.codes[1], buffers.scales[1]};
    const int64_t begin = block * state_block;
    const float m_scale = m.scale(block), v_scale = v.scale(block);
    while (first_segment < num_segments && segments[first_segment].offset + segments[first_segment].count <= begin)
      ++first_segment;
    for (int64_t i = first_segment; i < num_segments && segments[i].offset < begin + state_block; ++i) {
      const UpdateSegment segment = segments[i];  // a copy: stores below might change it through the pointer
      auto own = step;
      own.begin_segment(segment);
#pragma unroll
      for (int p = 0; p < packs_of_lane; ++p) {
        const PackPart part(begin + width * (32 * p + threadIdx.x % 32), segment, packs);
        if (part.first >= part.end) continue;
        const auto g = part.read(buffers.gradients);
        auto w = buffers.read_weights(part);
        const auto m_codes = part.read(m.codes), v_codes = part.read(v.codes);
        Pack<float, width> averages{};
        if constexpr (has_average) averages = part.read(buffers.averages);
#pragma unroll
        for (int k = 0; k < width; ++k) {
          float own_m = tables.decode_signed.values[m_codes.at[k]] * m_scale;
          float own_v = tables.decode_unsigned.values[v_codes.at[k]] * v_scale;
          w.at[k] = updated_in_block<has_average>(own, to_float(g.at[k]), w.at[k], own_m, own_v, averages.at[k]);
          if (!part.holds(k)) continue;
          m.values[p][k] = own_m;
          v.values[p][k] = own_v;
        }
        if constexpr (has_average) part.write(buffers.averages, averages);
        buffers.write_weights(part, w, segment, updates);
      }
    }
    m.store(tables.encode_signed, block, packs);
    v.store(tables.encode_unsigned, block, packs);
  }
}

template <typename G, typename C, bool has_master, typename Op>
void launch_block_update(const Op& op, Stream stream) {
  const BlockBuffers<G, C, has_master> buffers{
      .gradients = op.gradients.template as<const G>(),
      .master = op.master.template as<float>(),
      .weights = op.weights.template as<C>(),
      .averages = Op::num_columns > 2 ? op.columns[2].template as<float>() : nullptr,
      .codes = {op.columns[0].template as<uint8_t>(), op.columns[1].template as<uint8_t>()},
      .scales = {op.scales[0].template as<float>(), op.scales[1].template as<float>()}};
  const int64_t blocks = op.gradients.cols / state_block;
  LaunchShape shape = shape_for((blocks + warps_of_block - 1) / warps_of_block);
  shape.shared_bytes = sizeof(BlockUpdateMemory<typename Op::Formula>);
  launch(stream, shape, update_blocks<Op, G, C, has_master>, op.segments, op.num_segments, blocks,
         typename Op::Formula(op), op.state, buffers);
}

template <typename G, typename Op>
void run_block_update_with(const Op& op, Stream stream) {
  if (!op.master.given()) return launch_block_update<G, bf16, false>(op, stream);
  if (!op.weights.given() || op.weights.dtype == DType::f32) return launch_block_update<G, float, true>(op, stream);
  if (op.weights.dtype == DType::bf16) return launch_block_update<G, bf16, true>(op, stream);
  launch_block_update<G, f16, true>(op, stream);
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
