// Attention, backward. One kernel has 64 keys per block and loops over the queries (of all query heads that use these
// keys) for dk and dv; another has 64 queries and loops over the keys for dq. Both recompute the probabilities p and
// the gradients dp of the kept ones. With the four products that are needed this makes seven, two more than a single
// pass that adds to dq by atomics, whose bits would vary.
//   ds = p (dp - delta), delta = sum over features of d_o o      dq = scale ds k      dk = scale ds^T q      dv = p^T
//   d_o
// A softcap multiplies ds by its derivative.
// With keys in two orders the first kernel runs once for each and adds up dk and dv in f32; with two passes over the
// queries the second runs once for each and adds up dq. Included by the files that compile it: for patterns of one run
// of keys, of several, and for parts.
#pragma once

#include "kernels/attention.h"
#include "kernels/attention_tiles.h"
#include "ops/gpu_scratch.h"

namespace gptrain::inline cuda::attention {
namespace {

// Sums in f32 of results that several launches make; null: one launch makes them.
struct GradientSums {
  Rows<float> dq, dk, dv;  // shaped like the results
};

// Use of the sums in f32 by a launch: it makes its results alone, begins the sums, or adds to them.
enum class SumUse : uint8_t { none, begins, adds };

// `R`: type of the results.
template <typename T, bool several_runs, typename R>
struct BackwardOperands {
  Rows<const T> q, k, v, o, d_o;
  Rows<const float> lse;
  Rows<R> dq, dk, dv;
  float* delta;  // [batch heads, tokens]
  Sizes<several_runs> sizes;
  DropoutOfHeads dropout;
  GradientSums sums;
  bool picked_keys;  // backward_keys: the order of its keys
  SumUse use;
};

constexpr unsigned delta_threads = 256;

// One warp per row of one head.
template <typename T, bool several_runs, typename R>
__global__ void row_sums(BackwardOperands<T, several_runs, R> op) {
  const Sizes<several_runs>& sizes = op.sizes;
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

// The gradient of a head's sink: its probability in each row is exp(sink - lse), and its value zero. A warp per head.
__global__ void sink_gradients(const float* sinks, Rows<const float> lse, const float* delta, int64_t batch,
                               int64_t tokens, double* gradients) {
  const int64_t heads = gridDim.x, head = blockIdx.x;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < batch * tokens; i += 32) {
    const int64_t row = i / tokens * heads + head, token = i % tokens;
    sum -= static_cast<double>(expf(sinks[head] - *lse.at(row, token)) * delta[row * tokens + token]);
  }
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  if (threadIdx.x == 0) gradients[head] = sum;
}

// The log-sum-exp of a query past the end, or at an empty place, is infinite, which makes its probabilities zero.
struct QuerySums {
  float lse, delta;
};

// `place`: the query's.
template <typename Operands, bool several_runs>
__device__ QuerySums query_sums(const Operands& op, const KeyTiles<several_runs>& tiles, int64_t head_of_batch,
                                int place) {
  const int row = place < tiles.num_queries() ? query_row(tiles, place) : tiles.tokens;
  if (row >= tiles.tokens) return {infinity, 0};
  return {*op.lse.at(head_of_batch, row), op.delta[head_of_batch * op.sizes.tokens + row]};
}

// Computed from a score and the gradient of its (dropped) probability. p: the probability after dropout, without
// dropout's scale.
struct Gradients {
  float p, ds;
};

__device__ inline Gradients gradients_of(float score, float dp, bool kept, const QuerySums& sums,
                                         const ScoreScale& scale, float keep_scale) {
  const CappedScore capped = scale.of(score);
  const float p = probability(capped.value, sums.lse);
  return {kept ? p : 0.0F, p * ((kept ? dp * keep_scale : 0.0F) - sums.delta) * capped.slope};
}

template <typename E, int chunks>
struct KeysMemory : BlockMemory<E, chunks, 2> {
  QuerySums sums[tile_size];
};
// The limit for shared memory without an opt-in.
static_assert(sizeof(KeysMemory<MmaEngine<bf16>, 2>) <= 48 << 10 &&
              sizeof(KeysMemory<FmaEngine<float>, 4>) <= 48 << 10);

// Dropout of a head's probabilities.
struct ProbabilityDropout {
  bool drops;
  float keep_scale;
};

// Rows are keys, columns are queries. Rows past the last key may hold anything: they do not affect others and are not
// stored. Columns are the outer loop, so that one query's sums are in registers at a time.
template <typename E, int chunks>
__device__ __forceinline__ void gradients_by_key(typename E::Values& values, typename E::Values& gradients,
                                                 const KeysMemory<E, chunks>& memory, const ScoreScale& scale,
                                                 ProbabilityDropout dropout) {
#pragma unroll
  for (int j = 0; j < E::cols; ++j)
#pragma unroll
    for (int i = 0; i < E::rows; ++i) {
      const int column = E::score_column(j);
      const bool kept = !dropout.drops || memory.kept.at(column, E::row(i));
      const Gradients result =
          gradients_of(values.at[i][j], gradients.at[i][j], kept, memory.sums[column], scale, dropout.keep_scale);
      values.at[i][j] = result.p;
      gradients.at[i][j] = result.ds;
    }
}

// Adds sums[c], multiplied by the factor, to rows of `to`, or begins these.
template <typename E, int chunks, typename TokenOf>
__device__ __forceinline__ void sum_up(const typename E::Values (&sums)[chunks], float factor, const Head<float>& to,
                                       SumUse use, const TokenOf& token_of) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const int64_t token = token_of(i);
    if (token >= to.tokens) continue;
    float* const row = to.data + token * to.stride;
    for_each_feature<E, chunks>(to.head_size, [&](int c, int j, int feature) {
      const float value = sums[c].at[i][j] * factor;
      row[feature] = use == SumUse::adds ? row[feature] + value : value;
    });
  }
}

// Adds the rows of an earlier pass to sums[c].
template <typename E, int chunks, typename TokenOf>
__device__ __forceinline__ void add_carried(typename E::Values (&sums)[chunks], const KeyTiles<true>& tiles,
                                            const Head<float>& from, const TokenOf& token_of) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const auto token = static_cast<int>(token_of(i));
    if (!tiles.is_picked(token)) continue;
    for_each_feature<E, chunks>(from.head_size, [&](int c, int j, int feature) {
      sums[c].at[i][j] += from.data[token * from.stride + feature];
    });
  }
}

// Rounds sums to results.
template <typename T>
__global__ void round_sums(Rows<const float> sums, Rows<T> to, int64_t rows, int64_t cols) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * cols; i += step)
    *to.at(i / cols, i % cols) = rounded_to<T>(*sums.at(i / cols, i % cols));
}

// Blocks of backward_keys for a sequence and key/value head: one per tile of keys, and of each set of columns.
template <bool several_runs>
__host__ __device__ int64_t key_blocks(const Sizes<several_runs>& sizes, bool picked) {
  return sizes.tiles.num_key_tiles(picked) * int64_t{picked ? sizes.column_sets : 1};
}

template <typename E, int chunks, bool several_runs, typename R>
__global__ void __launch_bounds__(E::threads, blocks_side_by_side<E>(2 * chunks + 2))
    backward_keys(BackwardOperands<typename E::Element, several_runs, R> op) {
  using T = typename E::Element;
  auto& memory = shared<KeysMemory<E, chunks>>();
  const Sizes<several_runs>& sizes = op.sizes;
  const int64_t groups = sizes.batch * sizes.kv_heads;
  const int64_t group = blockIdx.x % groups;
  const int64_t sequence = group / sizes.kv_heads, kv_head = group % sizes.kv_heads;
  if (sizes.leaves_out(sequence)) return;
  // Blocks take the first keys first: under a causal mask these are seen by the most queries.
  const int sets = several_runs && op.picked_keys ? sizes.column_sets : 1;
  const int block = static_cast<int>(blockIdx.x / groups), set = block % sets;
  const KeyTile key{block / sets, several_runs && op.picked_keys};
  const KeyTiles<several_runs> tiles = sizes.tiles_of(sequence, set);
  if (key.tile >= tiles.num_key_tiles(key.picked)) return;
  const Head<const T> k = sizes.key_head(op.k, sequence, kv_head);
  const Head<const T> v = sizes.key_head(op.v, sequence, kv_head);
  const PlacedRows<const T, several_runs> keys{k, tiles, key.first(), key.picked};
  const PlacedRows<const T, several_runs> key_values{v, tiles, key.first(), key.picked};
  keep_left<E, chunks>(memory, 0, keys);
  keep_left<E, chunks>(memory, 1, key_values);

  typename E::Values dk[chunks], dv[chunks];
  const PlaceRange query_tiles = tiles.query_tiles(key);
  for (int64_t i = 0; i < sizes.heads_of_group(); ++i) {
    const int64_t head = kv_head * sizes.heads_of_group() + i;
    if (sets > 1 && head % sets != set) continue;
    const Head<const T> q = sizes.head(op.q, sequence, head);
    const Head<const T> d_o = sizes.head(op.d_o, sequence, head);
    const HeadDropout dropout = op.dropout.of(sequence, head, sizes.tokens);
    for (int query_tile = query_tiles.first; query_tile < query_tiles.end; ++query_tile) {
      if (!tiles.runs(query_tile).contains(key)) {
        if constexpr (several_runs) {
          continue;
        } else {
          break;  // the first key that a query sees never decreases
        }
      }
      const int query = query_tile * tile_size;
      memory.kept.template draw<E::threads>(dropout, tiles, query_tile, key);
      if (threadIdx.x < tile_size) {
        memory.sums[threadIdx.x] =
            query_sums(op, tiles, sequence * sizes.heads + head, query + static_cast<int>(threadIdx.x));
      }
      const PlacedRows<const T, several_runs> queries{q, tiles, query, tiles.picked_queries};
      const PlacedRows<const T, several_runs> d_outputs{d_o, tiles, query, tiles.picked_queries};
      typename E::Values values = scores<E, chunks>(memory, 0, keys, queries);
      typename E::Values gradients = scores<E, chunks>(memory, 1, key_values, d_outputs);
      hide_unseen_by_key<E>(values, tiles, query_tile, key);
      gradients_by_key<E>(values, gradients, memory, sizes.scale, {dropout.threshold != 0, op.dropout.keep_scale});
      add_weighted<E>(dv, memory, E::weights_of(values), d_outputs);
      add_weighted<E>(dk, memory, E::weights_of(gradients), queries);
    }
  }

  const auto row_of = [&](int i) -> int64_t {
    const int place = key.first() + E::row(i);
    return place < tiles.num_keys(key.picked) ? key_row(tiles, place, key.picked) : tiles.natural_count;
  };
  if (several_runs && op.use != SumUse::none) {
    sum_up<E>(dk, sizes.scale.factor, sizes.key_head(op.sums.dk, sequence, kv_head), op.use, row_of);
    sum_up<E>(dv, op.dropout.keep_scale, sizes.key_head(op.sums.dv, sequence, kv_head), op.use, row_of);
    return;
  }
  float factors[E::rows];
  for (float& factor : factors) factor = sizes.scale.factor;
  store_sums<E>(dk, factors, sizes.key_head(op.dk, sequence, kv_head), row_of);
  for (float& factor : factors) factor = op.dropout.keep_scale;
  store_sums<E>(dv, factors, sizes.key_head(op.dv, sequence, kv_head), row_of);
}

// Rows are queries, columns are keys.
template <typename E>
__device__ __forceinline__ void gradients_by_query(typename E::Values& values, const typename E::Values& gradients,
                                                   const QuerySums (&sums)[E::rows], const KeptBits& kept_bits,
                                                   const ScoreScale& scale, ProbabilityDropout dropout) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i)
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      const bool kept = !dropout.drops || kept_bits.at(E::row(i), E::score_column(j));
      values.at[i][j] = gradients_of(values.at[i][j], gradients.at[i][j], kept, sums[i], scale, dropout.keep_scale).ds;
    }
}

template <typename E, int chunks, bool several_runs, typename R>
__global__ void __launch_bounds__(E::threads, blocks_side_by_side<E>(chunks + 2))
    backward_queries(BackwardOperands<typename E::Element, several_runs, R> op) {
  using T = typename E::Element;
  auto& memory = shared<BlockMemory<E, chunks, 2>>();
  const Sizes<several_runs>& sizes = op.sizes;
  const int64_t heads = sizes.batch * sizes.heads;
  const int64_t block_head = blockIdx.x % heads;
  const int64_t sequence = block_head / sizes.heads, head = block_head % sizes.heads;
  if (sizes.leaves_out(sequence)) return;
  const KeyTiles<several_runs> tiles = sizes.tiles_of(sequence, head);
  const int query_tile = tiles.num_query_tiles() - 1 - static_cast<int>(blockIdx.x / heads);
  const int query = query_tile * tile_size;
  const int64_t kv_head = head / sizes.heads_of_group();
  const Head<const T> q = sizes.head(op.q, sequence, head);
  const Head<const T> d_o = sizes.head(op.d_o, sequence, head);
  const Head<const T> k = sizes.key_head(op.k, sequence, kv_head);
  const Head<const T> v = sizes.key_head(op.v, sequence, kv_head);
  const PlacedRows<const T, several_runs> queries{q, tiles, query, tiles.picked_queries};
  const PlacedRows<const T, several_runs> d_outputs{d_o, tiles, query, tiles.picked_queries};
  const HeadDropout dropout = op.dropout.of(sequence, head, sizes.tokens);
  keep_left<E, chunks>(memory, 0, queries);
  keep_left<E, chunks>(memory, 1, d_outputs);
  QuerySums sums[E::rows];
  for (int i = 0; i < E::rows; ++i) sums[i] = query_sums(op, tiles, block_head, query + E::row(i));

  typename E::Values dq[chunks];
  const KeyRuns runs = tiles.runs(query_tile);
  for (int n = 0; n < runs.size(); ++n) {
    const KeyTile key = runs[n];
    memory.kept.template draw<E::threads>(dropout, tiles, query_tile, key);
    const PlacedRows<const T, several_runs> keys{k, tiles, key.first(), key.picked};
    const PlacedRows<const T, several_runs> key_values{v, tiles, key.first(), key.picked};
    typename E::Values values = scores<E, chunks>(memory, 0, queries, keys);
    const typename E::Values gradients = scores<E, chunks>(memory, 1, d_outputs, key_values);
    hide_unseen<E>(values, tiles, query_tile, key);
    gradients_by_query<E>(values, gradients, sums, memory.kept, sizes.scale,
                          {dropout.threshold != 0, op.dropout.keep_scale});
    add_weighted<E>(dq, memory, E::weights_of(values), keys);
  }

  const auto row_of = [&](int i) -> int64_t {
    const int place = query + E::row(i);
    return place < tiles.num_queries() ? query_row(tiles, place) : tiles.tokens;
  };
  if constexpr (several_runs) {
    const Head<float> carried = sizes.head(op.sums.dq, sequence, head);
    if (op.use == SumUse::begins) return sum_up<E>(dq, 1.0F, carried, op.use, row_of);
    if (op.use == SumUse::adds) add_carried<E>(dq, tiles, carried, row_of);
  }
  float factors[E::rows];
  for (float& factor : factors) factor = sizes.scale.factor;
  store_sums<E>(dq, factors, sizes.head(op.dq, sequence, head), row_of);
}

// Launches of the two kernels.
template <typename E, int n, bool several_runs, typename R>
class BackwardLaunches {
 public:
  using T = typename E::Element;
  using Operands = BackwardOperands<T, several_runs, R>;

  BackwardLaunches(const AttentionBackward& op, const AttentionPart* part, Stream stream, std::byte* scratch,
                   const int32_t* wanted)
      : op_(op),
        part_(part),
        stream_(stream),
        wanted_(wanted),
        operands_(operands(reinterpret_cast<float*>(scratch))) {}

  void run() {
    const int64_t rows_of_heads = op_.batch * op_.sequence_length * op_.num_heads;
    constexpr int64_t rows_of_block = delta_threads / 32;
    launch(stream_, {(rows_of_heads + rows_of_block - 1) / rows_of_block, delta_threads, 0},
           row_sums<T, several_runs, R>, operands_);
    if (op_.sinks.given())
      launch(stream_, {op_.num_heads, 32, 0}, sink_gradients, op_.sinks.as<const float>(), operands_.lse,
             operands_.delta, op_.batch, op_.sequence_length, op_.d_sinks.as<double>());
    run_keys();
    for (int pass = 0; pass < passes(); ++pass) {
      Operands operands = operands_;
      operands.sizes = sizes(pass);
      if (passes() > 1) operands.use = pass == 0 ? SumUse::begins : SumUse::adds;
      launch(stream_,
             {op_.batch * op_.num_heads * operands.sizes.tiles.num_query_tiles(), E::threads,
              sizeof(BlockMemory<E, n, 2>)},
             backward_queries<E, n, several_runs, R>, operands);
    }
  }

 private:
  // Returns the operands of a launch of the first pass that makes its results alone.
  Operands operands(float* delta) const {
    return {.q = Rows<const T>(op_.q),
            .k = Rows<const T>(op_.k),
            .v = Rows<const T>(op_.v),
            .o = Rows<const T>(op_.o),
            .d_o = Rows<const T>(op_.d_o),
            .lse = Rows<const float>(op_.lse),
            .dq = Rows<R>(op_.dq),
            .dk = Rows<R>(op_.dk),
            .dv = Rows<R>(op_.dv),
            .delta = delta,
            .sizes = sizes(0),
            .dropout = DropoutOfHeads(op_.dropout),
            .sums = sums(delta + op_.batch * op_.num_heads * op_.sequence_length),
            .picked_keys = false,
            .use = SumUse::none};
  }
  // Returns the sums that the pattern needs, in memory from `next` on.
  GradientSums sums(float* next) const {
    const auto take = [&](const Matrix& like) {
      const Matrix taken{next, DType::f32, like.rows, like.cols};
      next += taken.count();
      return Rows<float>(taken);
    };
    GradientSums result{};
    if (several_runs && attention_sums_keys(op_.mask, op_.sequence_length)) {
      result.dk = take(op_.dk);
      result.dv = take(op_.dv);
    }
    if (passes() > 1) result.dq = take(op_.dq);
    return result;
  }

  int passes() const { return several_runs ? attention_passes(op_.mask, op_.sequence_length) : 1; }
  Sizes<several_runs> sizes(int pass) const {
    return sizes_of(op_, tiles_of<several_runs>(op_, part_, pass), {op_.q, op_.k, op_.v, op_.d_o}, wanted_);
  }

  // Begins with the order that holds every token: the natural one, or for columns the picked one.
  void run_keys() {
    if (operands_.sums.dk.data == nullptr) return launch_keys(passes() - 1, picks_all(), SumUse::none);
    launch_keys(passes() - 1, picks_all(), SumUse::begins);
    launch_keys(0, !picks_all(), SumUse::adds);
    round(op_.dk, operands_.sums.dk, operands_.dk);
    round(op_.dv, operands_.sums.dv, operands_.dv);
  }
  bool picks_all() const { return several_runs && operands_.sizes.tiles.kind == AttentionKind::columns; }

  void launch_keys(int pass, bool picked, SumUse use) {
    Operands operands = operands_;
    operands.sizes = sizes(pass);
    operands.picked_keys = picked;
    operands.use = use;
    launch(stream_,
           {op_.batch * op_.num_kv_heads * key_blocks(operands.sizes, picked), E::threads, sizeof(KeysMemory<E, n>)},
           backward_keys<E, n, several_runs, R>, operands);
  }

  void round(const Matrix& result, const Rows<float>& sums, const Rows<R>& to) {
    launch(stream_, shape_of_elements(result.rows, result.cols, 1), round_sums<R>,
           Rows<const float>(Matrix{sums.data, DType::f32, result.rows, result.cols, sums.stride}), to, result.rows,
           result.cols);
  }

  const AttentionBackward& op_;
  const AttentionPart* part_;
  Stream stream_;
  const int32_t* wanted_;
  Operands operands_;
};

// `part`: the part of a sequence that the op computes, whose results are f32; null: whole sequences.
template <bool several_runs, bool is_part = false>
void run_backward(const AttentionBackward& op, Stream stream, std::byte* scratch, const int32_t* wanted,
                  const AttentionPart* part = nullptr) {
  with_engine(op.q.dtype, op.head_size, [&](auto engine, auto chunks) {
    using E = decltype(engine);
    using R = std::conditional_t<is_part, float, typename E::Element>;
    BackwardLaunches<E, decltype(chunks)::value, several_runs, R>(op, part, stream, scratch, wanted).run();
  });
}

}  // namespace
}  // namespace gptrain::cuda::attention
