// Segments of a flat range of elements, which update kernels traverse in chunks divided over the blocks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/philox.h"
#include "kernels/values.h"
#include "launch.h"
#include "ops/element_update.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda {

constexpr unsigned threads = gpu_norm_lanes;
constexpr int width = gpu_norm_pack;  // elements per access of a thread: 16 bytes of f32
// Chunks do not depend on the number of blocks, so that sums have a fixed order.
constexpr int64_t chunk = gpu_norm_chunk;

// At least one block: a rank's piece of a unit may be padding only, without a segment.
inline LaunchShape shape_for(int64_t chunks) { return {std::clamp<int64_t>(chunks, 1, most_grid_blocks), threads, 0}; }

// Calls body(segment, first, end, chunk index) for this block's chunks: every gridDim.x-th over all segments.
template <typename Segment, typename Body>
__device__ void for_each_chunk(const Segment* segments, int64_t num_segments, const Body& body) {
  int64_t first_of_segment = 0;
  int64_t next = blockIdx.x;
  for (int64_t i = 0; i < num_segments; ++i) {
    const Segment segment = segments[i];  // a copy: through the pointer each store would cause the next read again
    const int64_t chunks = (segment.count + chunk - 1) / chunk;
    for (; next < first_of_segment + chunks; next += gridDim.x) {
      const int64_t first = segment.offset + (next - first_of_segment) * chunk;
      const int64_t end_of_segment = segment.offset + segment.count;
      body(segment, first, first + chunk < end_of_segment ? first + chunk : end_of_segment, next);
    }
    first_of_segment += chunks;
  }
}

// Returns true if packs can be read from these addresses; segments may start anywhere.
template <typename... T>
__device__ bool in_whole_packs(const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % sizeof(Pack<T, width>) == 0) && ...);
}

struct WarpSums {
  double of_warp[threads / 32];
};

// Returns the sum over the block, in a fixed order. `sums` is in shared memory.
__device__ inline double block_sum(double value, WarpSums& sums) {
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffff, value, lanes);
  if (threadIdx.x % 32 == 0) sums.of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (const double sum : sums.of_warp) total += sum;
  __syncthreads();  // until no thread reads the sums
  return total;
}

// Returns the sum of the chunks of all segments that `counts` accepts. Chunk c has its sum at of_chunks[c * step]. The
// block's threads divide the chunks, and the order of additions depends on the segments only.
template <typename Segment, typename Counts>
__device__ double sum_of_chunks(const Segment* segments, int64_t num_segments, const double* of_chunks, int64_t step,
                                const Counts& counts) {
  double total = 0;
  int64_t index = 0;
  for (int64_t i = 0; i < num_segments; ++i) {
    const int64_t end = index + (segments[i].count + chunk - 1) / chunk;
    if (counts(segments[i]))
      for (int64_t at = index + threadIdx.x; at < end; at += blockDim.x) total += of_chunks[at * step];
    index = end;
  }
  return block_sum(total, shared<WarpSums>());
}

// Returns the random words of element `index` of a tensor (see ElementUpdate in ops/element_update.h) and of its three
// neighbours.
__device__ inline auto rounding_words(PhiloxKey key, int64_t index, int64_t updates) {
  const auto counter = static_cast<uint64_t>(index) / 4, step = static_cast<uint64_t>(updates);
  return philox(key, {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(step),
                      static_cast<uint32_t>(step >> 32)});
}

// Returns true if the elements of the pack at i are consecutive in the tensor and use one counter's words.
__device__ inline bool is_one_counter(const IndexMap& map, int64_t i) {
  return map.index(i) % width == 0 && (map.cols == map.stride || (map.first + i) % map.cols + width <= map.cols);
}

// Computes this step's formula in shared memory, once for the whole block.
template <typename Formula, typename State>
__device__ Formula begun(const Formula& formula, const State& state, Formula& step) {
  if (threadIdx.x == 0) {
    step = formula;
    step.begin_step(state);
  }
  __syncthreads();
  return step;
}

}  // namespace gptrain::cuda
