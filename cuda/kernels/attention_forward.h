// Attention, forward. A block has 64 queries of a head and loops over its keys with an online softmax (arXiv
// 2307.08691). Included by the files that compile it: for patterns of one run of keys, of several, and for parts.
#pragma once

#include "kernels/attention.h"
#include "kernels/attention_tiles.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda::attention {
namespace {

// Sums and softmax of a head between two passes over its queries, in scratch.
struct CarriedSoftmax {
  Rows<float> o;         // [batch tokens, heads head_size]; null: there is one pass
  float *largest, *sum;  // [batch heads, tokens]
};

// `R`: type of the results.
template <typename T, bool several_runs, typename R>
struct ForwardOperands {
  Rows<const T> q, k, v;
  Rows<R> o;
  Rows<float> lse;
  Sizes<several_runs> sizes;
  DropoutOfHeads dropout;
  CarriedSoftmax carried;
  const float* sinks;  // [heads] or null
  float* row_largest;  // [batch heads, tokens], largest score of each row, or null
  bool second_pass;
};

// State per row of a thread: the largest score so far, and the sum of e^(score - largest) over the thread's columns.
template <typename E>
struct RunningSoftmax {
  float largest[E::rows], sum[E::rows];
};

__device__ inline float larger_of_row(float value, int lanes_of_row) {
  for (int lanes = lanes_of_row / 2; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, static_cast<unsigned>(lanes)));
  return value;
}

__device__ inline float sum_of_row(float value, int lanes_of_row) {
  for (int lanes = lanes_of_row / 2; lanes > 0; lanes /= 2)
    value += __shfl_xor_sync(0xffffffff, value, static_cast<unsigned>(lanes));
  return value;
}

// Raises the largest score of each row of a thread.
template <typename E>
__device__ __forceinline__ void raise(float (&largest)[E::rows], const typename E::Values& values) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i)
    for (int j = 0; j < E::cols; ++j) largest[i] = fmaxf(largest[i], values.at[i][j]);
}

// largest[head] = the maximum of largest[head] and of the head's elements of row_largest. A warp per head.
__global__ void raise_largest(const float* row_largest, int64_t batch, int64_t tokens, float* largest) {
  const int64_t heads = gridDim.x, head = blockIdx.x;
  float value = threadIdx.x == 0 ? largest[head] : -infinity;
  for (int64_t i = threadIdx.x; i < batch * tokens; i += 32)
    value = fmaxf(value, row_largest[(i / tokens * heads + head) * tokens + i % tokens]);
  value = larger_of_row(value, 32);
  if (threadIdx.x == 0) largest[head] = value;
}

template <typename E>
__device__ __forceinline__ void scale_scores(typename E::Values& values, const ScoreScale& scale) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i)
    for (int j = 0; j < E::cols; ++j) values.at[i][j] = scale.of(values.at[i][j]).value;
}

// Turns scores into e^(score - largest) and rescales earlier sums to the new maximum.
template <typename E, int chunks>
__device__ __forceinline__ void online_softmax(typename E::Values& values, typename E::Values (&o)[chunks],
                                               RunningSoftmax<E>& running) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    float largest = running.largest[i];
    for (int j = 0; j < E::cols; ++j) largest = fmaxf(largest, values.at[i][j]);
    largest = larger_of_row(largest, E::lanes_of_row);
    // A row that has seen no key yet has the base 0, to avoid infinity - infinity.
    const float base = largest == -infinity ? 0.0F : largest;
    const float shrink = exp2f((running.largest[i] - base) * log2_e);
    running.largest[i] = largest;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      values.at[i][j] = exp2f((values.at[i][j] - base) * log2_e);
      sum += values.at[i][j];
    }
    running.sum[i] = running.sum[i] * shrink + sum;
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      for (int j = 0; j < E::cols; ++j) o[c].at[i][j] *= shrink;
  }
}

template <typename E>
__device__ __forceinline__ void drop(typename E::Values& values, const KeptBits& kept) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i)
    for (int j = 0; j < E::cols; ++j) {
      if (!kept.at(E::row(i), E::score_column(j))) values.at[i][j] = 0;
    }
}

// Goes on from the first pass of a pattern that has two.
template <typename E, int chunks>
__device__ __forceinline__ void load_carried(typename E::Values (&o)[chunks], RunningSoftmax<E>& running,
                                             const CarriedSoftmax& carried, const KeyTiles<true>& tiles,
                                             const Head<float>& sums, int64_t head_of_batch, int query) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const int token = query + E::row(i);
    if (!tiles.is_picked(token)) continue;
    const int64_t at = head_of_batch * tiles.tokens + token;
    running.largest[i] = carried.largest[at];
    // The sum of a row is divided over its threads.
    running.sum[i] = E::score_column(0) == 0 ? carried.sum[at] : 0.0F;
    for_each_feature<E, chunks>(
        sums.head_size, [&](int c, int j, int feature) { o[c].at[i][j] = sums.data[token * sums.stride + feature]; });
  }
}

template <typename E, int chunks, bool several_runs, typename R>
__global__ void __launch_bounds__(E::threads, blocks_side_by_side<E>(chunks + 1))
    forward(ForwardOperands<typename E::Element, several_runs, R> op) {
  using T = typename E::Element;
  auto& memory = shared<BlockMemory<E, chunks, 1>>();
  const Sizes<several_runs>& sizes = op.sizes;
  const int64_t heads = sizes.batch * sizes.heads;
  const int64_t block_head = blockIdx.x % heads;
  const int64_t sequence = block_head / sizes.heads, head = block_head % sizes.heads;
  if (sizes.leaves_out(sequence)) return;
  const KeyTiles<several_runs> tiles = sizes.tiles_of(sequence, head);
  // Blocks take the last queries first: under a causal mask these see the most keys.
  const int query_tile = tiles.num_query_tiles() - 1 - static_cast<int>(blockIdx.x / heads);
  const int query = query_tile * tile_size;
  const int64_t kv_head = head / sizes.heads_of_group();
  const Head<const T> q = sizes.head(op.q, sequence, head);
  const Head<const T> k = sizes.key_head(op.k, sequence, kv_head);
  const Head<const T> v = sizes.key_head(op.v, sequence, kv_head);
  const HeadDropout dropout = op.dropout.of(sequence, head, sizes.tokens);
  const PlacedRows<const T, several_runs> queries{q, tiles, query, tiles.picked_queries};

  typename E::Values o[chunks];
  RunningSoftmax<E> running;
  for (int i = 0; i < E::rows; ++i) {
    running.largest[i] = op.sinks != nullptr ? op.sinks[head] : -infinity;
    running.sum[i] = op.sinks != nullptr && E::score_column(0) == 0 ? 1.0F : 0.0F;
  }
  if constexpr (several_runs) {
    if (op.carried.largest != nullptr && !tiles.picked_queries)
      load_carried<E, chunks>(o, running, op.carried, tiles, sizes.head(op.carried.o, sequence, head), block_head,
                              query);
  }
  float largest_scores[E::rows];
  for (float& score : largest_scores) score = -infinity;
  keep_left<E, chunks>(memory, 0, queries);
  const KeyRuns runs = tiles.runs(query_tile);
  for (int n = 0; n < runs.size(); ++n) {
    const KeyTile key = runs[n];
    memory.kept.template draw<E::threads>(dropout, tiles, query_tile, key);
    const PlacedRows<const T, several_runs> keys{k, tiles, key.first(), key.picked};
    const PlacedRows<const T, several_runs> key_values{v, tiles, key.first(), key.picked};
    typename E::Values values = scores<E, chunks>(memory, 0, queries, keys);
    scale_scores<E>(values, sizes.scale);
    hide_unseen<E>(values, tiles, query_tile, key);
    if (op.row_largest != nullptr) raise<E>(largest_scores, values);
    online_softmax<E>(values, o, running);
    if (dropout.threshold != 0) drop<E>(values, memory.kept);
    add_weighted<E>(o, memory, E::weights_of(values), key_values);
  }

  const auto row_of = [&](int i) -> int64_t {
    const int place = query + E::row(i);
    return place < tiles.num_queries() ? query_row(tiles, place) : tiles.tokens;
  };
  float factors[E::rows];
  const bool carries = several_runs && op.carried.largest != nullptr && tiles.picked_queries;
  for (int i = 0; i < E::rows; ++i) {
    const float sum = sum_of_row(running.sum[i], E::lanes_of_row);
    // A query of a part may see no key.
    factors[i] = carries ? 1.0F : sum == 0 ? 0.0F : op.dropout.keep_scale / sum;
    const int64_t row = row_of(i);
    const float largest = op.row_largest != nullptr ? larger_of_row(largest_scores[i], E::lanes_of_row) : 0.0F;
    if (E::score_column(0) != 0 || row >= sizes.tokens) continue;
    if (op.row_largest != nullptr) {
      float& of_row = op.row_largest[block_head * sizes.tokens + row];
      of_row = op.second_pass && tiles.is_picked(static_cast<int>(row)) ? fmaxf(of_row, largest) : largest;
    }
    if (carries) {
      op.carried.largest[block_head * sizes.tokens + row] = running.largest[i];
      op.carried.sum[block_head * sizes.tokens + row] = sum;
    } else {
      *op.lse.at(block_head, row) = running.largest[i] + logf(sum);
    }
  }
  if (carries) {
    store_sums<E>(o, factors, sizes.head(op.carried.o, sequence, head), row_of);
  } else {
    store_sums<E>(o, factors, sizes.head(op.o, sequence, head), row_of);
  }
}

// Returns the softmax state that lies in scratch between two passes; empty if there is one pass.
template <bool several_runs>
CarriedSoftmax carried_of(const AttentionForward& op, std::byte* scratch) {
  if (!several_runs || attention_passes(op.mask, op.sequence_length) == 1) return {};
  const int64_t rows = op.batch * op.sequence_length, cols = op.num_heads * op.head_size;
  auto* const sums = reinterpret_cast<float*>(scratch);
  CarriedSoftmax carried;
  carried.o = Rows<float>(Matrix{sums, DType::f32, rows, cols, cols});
  carried.largest = sums + rows * cols;
  carried.sum = carried.largest + rows * op.num_heads;
  return carried;
}

// `part`: the part of a sequence that the op computes, whose results are f32; null: whole sequences.
template <bool several_runs, bool is_part = false>
void run_forward(const AttentionForward& op, Stream stream, std::byte* scratch, const int32_t* wanted,
                 const AttentionPart* part = nullptr) {
  with_engine(op.q.dtype, op.head_size, [&](auto engine, auto chunks) {
    using E = decltype(engine);
    using T = typename E::Element;
    using R = std::conditional_t<is_part, float, T>;
    constexpr int n = decltype(chunks)::value;
    const int passes = several_runs ? attention_passes(op.mask, op.sequence_length) : 1;
    float* const row_largest = op.largest.given() ? reinterpret_cast<float*>(scratch + gpu_carried_bytes(op)) : nullptr;
    for (int pass = 0; pass < passes; ++pass) {
      const ForwardOperands<T, several_runs, R> operands{
          .q = Rows<const T>(op.q),
          .k = Rows<const T>(op.k),
          .v = Rows<const T>(op.v),
          .o = Rows<R>(op.o),
          .lse = Rows<float>(op.lse),
          .sizes = sizes_of(op, tiles_of<several_runs>(op, part, pass), {op.q, op.k, op.v}, wanted),
          .dropout = DropoutOfHeads(op.dropout),
          .carried = carried_of<several_runs>(op, scratch),
          .sinks = op.sinks.as<const float>(),
          .row_largest = row_largest,
          .second_pass = pass > 0};
      const int64_t blocks = op.batch * op.num_heads * operands.sizes.tiles.num_query_tiles();
      launch(stream, {blocks, E::threads, sizeof(BlockMemory<E, n, 1>)}, forward<E, n, several_runs, R>, operands);
    }
    if (op.largest.given())
      launch(stream, {op.num_heads, 32, 0}, raise_largest, row_largest, op.batch, op.sequence_length,
             op.largest.as<float>());
  });
}

}  // namespace
}  // namespace gptrain::cuda::attention
