// Attention, forward. A block has 64 queries of a head and loops over its keys with an online softmax (arXiv
// 2307.08691).
#include "kernels/attention.h"
#include "kernels/attention_tiles.h"

namespace gptrain::inline cuda {
namespace attention {
namespace {

template <typename T>
struct ForwardOperands {
  Rows<const T> q, k, v;
  Rows<T> o;
  Rows<float> lse;
  Sizes sizes;
  DropoutOfHeads dropout;
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

// Turns products into scaled scores. Scores of keys after the query, or past the end, become minus infinity.
template <typename E>
__device__ __forceinline__ void scale_and_mask(typename E::Values& values, const Sizes& sizes, int64_t query,
                                               int64_t key) {
  const bool whole = key + tile_size <= sizes.tokens && (!sizes.causal || key + tile_size <= query + 1);
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const int64_t last = sizes.causal ? query + E::row(i) : sizes.tokens - 1;
    const int64_t end = (last < sizes.tokens ? last + 1 : sizes.tokens) - key;
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      values.at[i][j] *= sizes.scale;
      if (!whole && E::score_column(j) >= end) values.at[i][j] = -infinity;
    }
  }
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

template <typename E, int chunks>
__global__ void __launch_bounds__(E::threads, blocks_side_by_side<E>(chunks + 1))
    forward(ForwardOperands<typename E::Element> op) {
  using T = typename E::Element;
  auto& memory = shared<BlockMemory<E, chunks, 1>>();
  const Sizes& sizes = op.sizes;
  const int64_t heads = sizes.batch * sizes.heads;
  const int64_t block_head = blockIdx.x % heads;
  const int64_t sequence = block_head / sizes.heads, head = block_head % sizes.heads;
  if (sizes.leaves_out(sequence)) return;
  // Blocks take the last queries first: under a causal mask these see the most keys.
  const int64_t query = (num_tiles(sizes.tokens) - 1 - blockIdx.x / heads) * tile_size;
  const int64_t kv_head = head / sizes.heads_of_group();
  const Head<const T> q = sizes.head(op.q, sequence, head);
  const Head<const T> k = sizes.head(op.k, sequence, kv_head);
  const Head<const T> v = sizes.head(op.v, sequence, kv_head);
  const HeadDropout dropout = op.dropout.of(sequence, head, sizes.tokens);

  typename E::Values o[chunks];
  RunningSoftmax<E> running;
  for (int i = 0; i < E::rows; ++i) {
    running.largest[i] = -infinity;
    running.sum[i] = 0;
  }
  keep_left<E, chunks>(memory, 0, q, query);
  for (int64_t key = sizes.first_seen_tile(sequence, query); key < sizes.end_key(query); key += tile_size) {
    memory.kept.template draw<E::threads>(dropout, query, key);
    typename E::Values values = scores<E, chunks>(memory, 0, q, query, k, key);
    hide_before_first<E>(values, sizes, sequence, query, key);
    scale_and_mask<E>(values, sizes, query, key);
    online_softmax<E>(values, o, running);
    if (dropout.threshold != 0) drop<E>(values, memory.kept);
    add_weighted<E>(o, memory, E::weights_of(values), v, key);
  }

  float factors[E::rows];
  for (int i = 0; i < E::rows; ++i) {
    const float sum = sum_of_row(running.sum[i], E::lanes_of_row);
    factors[i] = op.dropout.keep_scale / sum;
    const int64_t row = query + E::row(i);
    if (E::score_column(0) == 0 && row < sizes.tokens) {
      *op.lse.at(sequence * sizes.heads + head, row) = running.largest[i] + logf(sum);
    }
  }
  store_sums<E>(o, factors, sizes.head(op.o, sequence, head), query);
}

}  // namespace
}  // namespace attention

void cuda_run(const AttentionForward& op, Stream stream, std::byte* scratch) { cuda_run(op, stream, scratch, nullptr); }

void cuda_run(const AttentionForward& op, Stream stream, std::byte*, const int32_t* wanted) {
  attention::with_engine(op.q.dtype, op.head_size, [&](auto engine, auto chunks) {
    using E = decltype(engine);
    using T = typename E::Element;
    constexpr int n = decltype(chunks)::value;
    const attention::ForwardOperands<T> operands{Rows<const T>(op.q),
                                                 Rows<const T>(op.k),
                                                 Rows<const T>(op.v),
                                                 Rows<T>(op.o),
                                                 Rows<float>(op.lse),
                                                 attention::sizes_of(op, {op.q, op.k, op.v}, wanted),
                                                 attention::DropoutOfHeads(op.dropout)};
    const int64_t blocks = op.batch * op.num_heads * attention::num_tiles(op.sequence_length);
    launch(stream, {blocks, E::threads, sizeof(attention::BlockMemory<E, n, 1>)}, attention::forward<E, n>, operands);
  });
}

}  // namespace gptrain::cuda
