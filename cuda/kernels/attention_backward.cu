// Attention, backward. One kernel has 64 keys per block and loops over the queries (of all query heads that use these
// keys) for dk and dv; another has 64 queries and loops over the keys for dq. Both recompute the probabilities p and
// the gradients dp of the kept ones. With the four products that are needed this makes seven, two more than a single
// pass that adds to dq by atomics, whose bits would vary.
//   ds = p (dp - delta), delta = sum over features of d_o o      dq = scale ds k      dk = scale ds^T q      dv = p^T
//   d_o
#include "kernels/attention.h"
#include "kernels/attention_tiles.h"

namespace gptrain::inline cuda {
namespace attention {
namespace {

template <typename T>
struct BackwardOperands {
  Rows<const T> q, k, v, o, d_o;
  Rows<const float> lse;
  Rows<T> dq, dk, dv;
  float* delta;  // [batch heads, tokens]
  Sizes sizes;
  DropoutOfHeads dropout;
};

constexpr unsigned delta_threads = 256;

// One warp per row of one head.
template <typename T>
__global__ void row_sums(BackwardOperands<T> op) {
  const Sizes& sizes = op.sizes;
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * delta_threads + threadIdx.x) / 32;
  const int64_t row = index / sizes.heads, head = index % sizes.heads;
  if (row >= sizes.batch * sizes.tokens || sizes.leaves_out(row / sizes.tokens)) return;
  const T* const o = op.o.at(row, head * sizes.head_size);
  const T* const d_o = op.d_o.at(row, head * sizes.head_size);
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x % 32); i < sizes.head_size; i += 32)
    sum += to_float(o[i]) * to_float(d_o[i]);
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  if (threadIdx.x % 32 == 0) {
    op.delta[(row / sizes.tokens * sizes.heads + head) * sizes.tokens + row % sizes.tokens] = sum;
  }
}

// The log-sum-exp of a query past the end is infinite, which makes its probabilities zero.
struct QuerySums {
  float lse, delta;
};

template <typename T>
__device__ QuerySums query_sums(const BackwardOperands<T>& op, int64_t head_of_batch, int64_t query) {
  if (query >= op.sizes.tokens) return {infinity, 0};
  return {*op.lse.at(head_of_batch, query), op.delta[head_of_batch * op.sizes.tokens + query]};
}

// Computed from a score and the gradient of its (dropped) probability. p: the probability after dropout, without
// dropout's scale.
struct Gradients {
  float p, ds;
};

__device__ inline Gradients gradients_of(float score, float dp, bool seen, bool kept, const QuerySums& sums,
                                         float scale, float keep_scale) {
  const float p = seen ? probability(score, scale, sums.lse) : 0.0F;
  return {kept ? p : 0.0F, p * ((kept ? dp * keep_scale : 0.0F) - sums.delta)};
}

template <typename E, int chunks>
struct KeysMemory : BlockMemory<E, chunks, 2> {
  QuerySums sums[tile_size];
};
// The limit for shared memory without an opt-in.
static_assert(sizeof(KeysMemory<MmaEngine<bf16>, 2>) <= 48 << 10 &&
              sizeof(KeysMemory<FmaEngine<float>, 4>) <= 48 << 10);

// First query and first key of a tile of scores.
struct ScoreTile {
  int64_t query, key;
};

// Dropout of a head's probabilities.
struct ProbabilityDropout {
  bool drops;
  float keep_scale;
};

// Rows are keys, columns are queries. Rows past the last key may hold anything: they do not affect others and are not
// stored.
template <typename E, int chunks>
__device__ __forceinline__ void gradients_by_key(typename E::Values& values, typename E::Values& gradients,
                                                 const KeysMemory<E, chunks>& memory, const Sizes& sizes,
                                                 ProbabilityDropout dropout, ScoreTile tile) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i)
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      const int column = E::score_column(j);
      const bool seen = !sizes.causal || tile.key + E::row(i) <= tile.query + column;
      const bool kept = !dropout.drops || memory.kept.at(column, E::row(i));
      const Gradients result = gradients_of(values.at[i][j], gradients.at[i][j], seen, kept, memory.sums[column],
                                            sizes.scale, dropout.keep_scale);
      values.at[i][j] = result.p;
      gradients.at[i][j] = result.ds;
    }
}

template <typename E, int chunks>
__global__ void __launch_bounds__(E::threads, blocks_side_by_side<E>(2 * chunks + 2))
    backward_keys(BackwardOperands<typename E::Element> op) {
  using T = typename E::Element;
  auto& memory = shared<KeysMemory<E, chunks>>();
  const Sizes& sizes = op.sizes;
  const int64_t groups = sizes.batch * sizes.kv_heads;
  const int64_t group = blockIdx.x % groups;
  const int64_t sequence = group / sizes.kv_heads, kv_head = group % sizes.kv_heads;
  if (sizes.leaves_out(sequence)) return;
  // Blocks take the first keys first: under a causal mask these are seen by the most queries.
  const int64_t key = blockIdx.x / groups * tile_size;
  const Head<const T> k = sizes.head(op.k, sequence, kv_head);
  const Head<const T> v = sizes.head(op.v, sequence, kv_head);
  keep_left<E, chunks>(memory, 0, k, key);
  keep_left<E, chunks>(memory, 1, v, key);

  typename E::Values dk[chunks], dv[chunks];
  for (int64_t i = 0; i < sizes.heads_of_group(); ++i) {
    const int64_t head = kv_head * sizes.heads_of_group() + i;
    const Head<const T> q = sizes.head(op.q, sequence, head);
    const Head<const T> d_o = sizes.head(op.d_o, sequence, head);
    const HeadDropout dropout = op.dropout.of(sequence, head, sizes.tokens);
    for (int64_t query = sizes.causal ? key : 0; query < sizes.tokens; query += tile_size) {
      if (sizes.first_seen_tile(sequence, query) > key) break;
      memory.kept.template draw<E::threads>(dropout, query, key);
      if (threadIdx.x < tile_size) {
        memory.sums[threadIdx.x] = query_sums(op, sequence * sizes.heads + head, query + threadIdx.x);
      }
      typename E::Values values = scores<E, chunks>(memory, 0, k, key, q, query);
      typename E::Values gradients = scores<E, chunks>(memory, 1, v, key, d_o, query);
      hide_before_first_by_key<E>(values, sizes, sequence, key, query);
      gradients_by_key<E>(values, gradients, memory, sizes, {dropout.threshold != 0, op.dropout.keep_scale},
                          {query, key});
      add_weighted<E>(dv, memory, E::weights_of(values), d_o, query);
      add_weighted<E>(dk, memory, E::weights_of(gradients), q, query);
    }
  }

  float factors[E::rows];
  for (float& factor : factors) factor = sizes.scale;
  store_sums<E>(dk, factors, sizes.head(op.dk, sequence, kv_head), key);
  for (float& factor : factors) factor = op.dropout.keep_scale;
  store_sums<E>(dv, factors, sizes.head(op.dv, sequence, kv_head), key);
}

// Rows are queries, columns are keys.
template <typename E>
__device__ __forceinline__ void gradients_by_query(typename E::Values& values, const typename E::Values& gradients,
                                                   const QuerySums (&sums)[E::rows], const KeptBits& kept_bits,
                                                   const Sizes& sizes, ProbabilityDropout dropout, ScoreTile tile) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i)
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      const int64_t column = tile.key + E::score_column(j);
      const bool seen = column < sizes.tokens && (!sizes.causal || column <= tile.query + E::row(i));
      const bool kept = !dropout.drops || kept_bits.at(E::row(i), E::score_column(j));
      values.at[i][j] =
          gradients_of(values.at[i][j], gradients.at[i][j], seen, kept, sums[i], sizes.scale, dropout.keep_scale).ds;
    }
}

template <typename E, int chunks>
__global__ void __launch_bounds__(E::threads, blocks_side_by_side<E>(chunks + 2))
    backward_queries(BackwardOperands<typename E::Element> op) {
  using T = typename E::Element;
  auto& memory = shared<BlockMemory<E, chunks, 2>>();
  const Sizes& sizes = op.sizes;
  const int64_t heads = sizes.batch * sizes.heads;
  const int64_t block_head = blockIdx.x % heads;
  const int64_t sequence = block_head / sizes.heads, head = block_head % sizes.heads;
  if (sizes.leaves_out(sequence)) return;
  const int64_t query = (num_tiles(sizes.tokens) - 1 - blockIdx.x / heads) * tile_size;
  const int64_t kv_head = head / sizes.heads_of_group();
  const Head<const T> q = sizes.head(op.q, sequence, head);
  const Head<const T> d_o = sizes.head(op.d_o, sequence, head);
  const Head<const T> k = sizes.head(op.k, sequence, kv_head);
  const Head<const T> v = sizes.head(op.v, sequence, kv_head);
  const HeadDropout dropout = op.dropout.of(sequence, head, sizes.tokens);
  keep_left<E, chunks>(memory, 0, q, query);
  keep_left<E, chunks>(memory, 1, d_o, query);
  QuerySums sums[E::rows];
  for (int i = 0; i < E::rows; ++i) sums[i] = query_sums(op, block_head, query + E::row(i));

  typename E::Values dq[chunks];
  for (int64_t key = sizes.first_seen_tile(sequence, query); key < sizes.end_key(query); key += tile_size) {
    memory.kept.template draw<E::threads>(dropout, query, key);
    typename E::Values values = scores<E, chunks>(memory, 0, q, query, k, key);
    const typename E::Values gradients = scores<E, chunks>(memory, 1, d_o, query, v, key);
    hide_before_first<E>(values, sizes, sequence, query, key);
    gradients_by_query<E>(values, gradients, sums, memory.kept, sizes, {dropout.threshold != 0, op.dropout.keep_scale},
                          {query, key});
    add_weighted<E>(dq, memory, E::weights_of(values), k, key);
  }

  float factors[E::rows];
  for (float& factor : factors) factor = sizes.scale;
  store_sums<E>(dq, factors, sizes.head(op.dq, sequence, head), query);
}

}  // namespace
}  // namespace attention

void cuda_run(const AttentionBackward& op, Stream stream, std::byte* scratch) {
  cuda_run(op, stream, scratch, nullptr);
}

void cuda_run(const AttentionBackward& op, Stream stream, std::byte* scratch, const int32_t* wanted) {
  attention::with_engine(op.q.dtype, op.head_size, [&](auto engine, auto chunks) {
    using E = decltype(engine);
    using T = typename E::Element;
    constexpr int n = decltype(chunks)::value;
    const attention::BackwardOperands<T> operands{Rows<const T>(op.q),
                                                  Rows<const T>(op.k),
                                                  Rows<const T>(op.v),
                                                  Rows<const T>(op.o),
                                                  Rows<const T>(op.d_o),
                                                  Rows<const float>(op.lse),
                                                  Rows<T>(op.dq),
                                                  Rows<T>(op.dk),
                                                  Rows<T>(op.dv),
                                                  reinterpret_cast<float*>(scratch),
                                                  attention::sizes_of(op, {op.q, op.k, op.v, op.d_o}, wanted),
                                                  attention::DropoutOfHeads(op.dropout)};
    const int64_t tiles = attention::num_tiles(op.sequence_length);
    const int64_t rows_of_heads = op.batch * op.sequence_length * op.num_heads;
    constexpr int64_t rows_of_block = attention::delta_threads / 32;
    launch(stream, {(rows_of_heads + rows_of_block - 1) / rows_of_block, attention::delta_threads, 0},
           attention::row_sums<T>, operands);
    launch(stream, {op.batch * op.num_kv_heads * tiles, E::threads, sizeof(attention::KeysMemory<E, n>)},
           attention::backward_keys<E, n>, operands);
    launch(stream, {op.batch * op.num_heads * tiles, E::threads, sizeof(attention::BlockMemory<E, n, 2>)},
           attention::backward_queries<E, n>, operands);
  });
}

}  // namespace gptrain::cuda
