// Shared by the attention kernels: heads of a matrix, products of their tiles by an engine, and dropout.
#pragma once

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "base/philox.h"
#include "kernels/attention_engines.h"
#include "kernels/rows.h"
#include "ops/fused_attention_policy.h"
#include "ops/ops.h"

namespace gptrain::inline cuda::attention {

constexpr float log2_e = 1.44269504F;
constexpr float infinity = std::numeric_limits<float>::infinity();

__host__ __device__ constexpr int64_t num_tiles(int64_t tokens) { return (tokens + tile_size - 1) / tile_size; }

// One head of one sequence: [tokens, head_size].
template <typename T>
struct Head {
  T* data;
  int64_t stride, tokens;
  int head_size;
  bool packs;

  __device__ TileSource<std::remove_const_t<T>> tile(int64_t token, int feature) const {
    const int64_t rows = tokens - token;
    return {data + token * stride + feature, stride, static_cast<int>(rows < tile_size ? rows : tile_size),
            head_size - feature < tile_size ? head_size - feature : tile_size, packs};
  }
};

struct Sizes {
  int64_t batch, tokens, heads, kv_heads;
  int head_size;
  float scale;
  bool causal, packs;
  int window;                      // tokens that a query sees; 0: no window
  const int32_t* document_starts;  // [batch, tokens] or null
  const int32_t* wanted;           // [batch] or null

  template <typename T>
  __device__ Head<T> head(const Rows<T>& matrix, int64_t sequence, int64_t head) const {
    return {matrix.at(sequence * tokens, head * head_size), matrix.stride, tokens, head_size, packs};
  }
  __device__ bool leaves_out(int64_t sequence) const { return wanted != nullptr && wanted[sequence] == 0; }
  __device__ int64_t heads_of_group() const { return heads / kv_heads; }
  // Returns the end of the keys that the queries of a tile see.
  __device__ int64_t end_key(int64_t first_query) const {
    return causal && first_query + tile_size < tokens ? first_query + tile_size : tokens;
  }
  // Returns the first key that a query sees. It never decreases from one query to the next, and stays the same past the
  // last query.
  __device__ int first_seen(int64_t sequence, int64_t query) const {
    const int own = static_cast<int>(query < tokens ? query : tokens - 1);
    const int of_window = window > 0 && own >= window ? own - window + 1 : 0;
    const int of_document = document_starts != nullptr ? document_starts[sequence * tokens + own] : 0;
    return of_window > of_document ? of_window : of_document;
  }
  // Returns the start of the first tile of keys that a tile of queries sees.
  __device__ int first_seen_tile(int64_t sequence, int64_t first_query) const {
    return first_seen(sequence, first_query) / tile_size * tile_size;
  }
  // Returns true if some query of the tile does not see the first key of the tile of keys.
  __device__ bool starts_late(int64_t sequence, int64_t first_query, int64_t first_key) const {
    return first_seen(sequence, first_query + tile_size - 1) > first_key;
  }
};

// Sets scores of keys before the first visible one to minus infinity, so that their probabilities are zero. Two
// versions: rows are queries, or rows are keys.
template <typename E>
__device__ __forceinline__ void hide_before_first(typename E::Values& values, const Sizes& sizes, int64_t sequence,
                                                  int64_t query, int64_t key) {
  if (!sizes.starts_late(sequence, query, key)) return;
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const int first = sizes.first_seen(sequence, query + E::row(i)) - static_cast<int>(key);
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      if (E::score_column(j) < first) values.at[i][j] = -infinity;
    }
  }
}

template <typename E>
__device__ __forceinline__ void hide_before_first_by_key(typename E::Values& values, const Sizes& sizes,
                                                         int64_t sequence, int64_t key, int64_t query) {
  if (!sizes.starts_late(sequence, query, key)) return;
#pragma unroll
  for (int j = 0; j < E::cols; ++j) {
    const int first = sizes.first_seen(sequence, query + E::score_column(j)) - static_cast<int>(key);
#pragma unroll
    for (int i = 0; i < E::rows; ++i) {
      if (E::row(i) < first) values.at[i][j] = -infinity;
    }
  }
}

// Returns the probability of a key from its score q . k.
__device__ inline float probability(float score, float scale, float lse) {
  return exp2f((score * scale - lse) * log2_e);
}

// Dropout of the probabilities of one head and sequence.
struct HeadDropout {
  uint32_t threshold;
  PhiloxKey key;
  uint32_t sample_low, sample_high;
};

// Dropout as ops/ops.h describes it. Attention has whole sequences, so that row 0 is token 0 of a sequence.
struct DropoutOfHeads {
  uint32_t threshold;  // 0: no dropout
  float keep_scale;
  PhiloxKey key;
  const int64_t* sample_ids;
  int64_t first_row, first_head;

  explicit DropoutOfHeads(const Dropout& dropout)
      : threshold(drop_threshold(dropout.p)),
        keep_scale(static_cast<float>(1.0 / (1.0 - dropout.p))),
        key(dropout.key),
        sample_ids(dropout.sample_ids),
        first_row(dropout.first_row),
        first_head(dropout.first_head) {}

  __device__ HeadDropout of(int64_t sequence, int64_t head, int64_t tokens) const {
    if (threshold == 0) return {};
    const auto words = philox(key, {static_cast<uint32_t>(first_head + head), 0, 0, 0});
    const auto sample = static_cast<uint64_t>(sample_ids[first_row / tokens + sequence]);
    return {threshold, {words[0], words[1]}, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)};
  }
};

// Bits of the kept probabilities of a tile. All threads draw them once, in Philox's groups of four keys, independent of
// the elements that a thread holds.
struct KeptBits {
  uint16_t of_query[tile_size][tile_size / 16];

  __device__ bool at(int query, int key) const { return (of_query[query][key / 16] >> (key % 16) & 1) != 0; }

  template <int threads>
  __device__ __forceinline__ void draw(const HeadDropout& dropout, int64_t first_query, int64_t first_key) {
    if (dropout.threshold == 0) return;
    constexpr int words = tile_size * tile_size / 16 / threads;
#pragma unroll 1
    for (int i = 0; i < words; ++i) {
      const int word = i * threads + static_cast<int>(threadIdx.x);
      const int query = word / (tile_size / 16), part = word % (tile_size / 16);
      uint32_t kept = 0;
      for (int group = 0; group < 4; ++group) {
        const auto drawn =
            philox(dropout.key, {static_cast<uint32_t>(first_key / 4 + 4 * part + group),
                                 static_cast<uint32_t>(first_query + query), dropout.sample_low, dropout.sample_high});
        for (size_t n = 0; n < 4; ++n) kept |= uint32_t{drawn[n] >= dropout.threshold} << (4 * group + n);
      }
      of_query[query][part] = static_cast<uint16_t>(kept);
    }
  }
};

// A block's shared memory. `operands`: number of a kernel's left operands of scores.
template <typename E, int chunks, int operands>
struct BlockMemory {
  typename E::Tile left[E::keeps_left ? operands * chunks : 1];
  typename E::Tile right;
  KeptBits kept;
};

// Loads a left operand that stays for the life of the block. The barriers of the next product come before its use.
template <typename E, int chunks, typename Memory, typename T>
__device__ __forceinline__ void keep_left(Memory& memory, int operand, const Head<T>& left, int64_t token) {
  if constexpr (E::keeps_left) {
    for (int c = 0; c < chunks; ++c) {
      if (c * tile_size >= left.head_size) break;
      E::put_for_scores(memory.left[operand * chunks + c], E::fetch(left.tile(token, c * tile_size)));
    }
  }
}

// values = left right^T of two tiles of tokens. `operand`: index of `left` among the operands that stay.
template <typename E, int chunks, typename Memory, typename T>
__device__ __forceinline__ typename E::Values scores(Memory& memory, int operand, const Head<T>& left,
                                                     int64_t left_token, const Head<T>& right, int64_t right_token) {
  typename E::Values values;
  for (int c = 0; c < chunks; ++c) {
    const int feature = c * tile_size;
    if (feature >= right.head_size) break;
    const auto source = right.tile(right_token, feature);
    const auto fetched = E::fetch(source);
    if constexpr (E::keeps_left) {
      __syncthreads();  // until no thread reads the tiles' old content
      E::put_for_scores(memory.right, fetched);
      __syncthreads();
      E::add_scores(values, memory.left[operand * chunks + c], memory.right, source.cols);
    } else {
      const auto left_fetched = E::fetch(left.tile(left_token, feature));
      __syncthreads();  // until no thread reads the tiles' old content
      E::put_for_scores(memory.right, fetched);
      E::put_for_scores(memory.left[0], left_fetched);
      __syncthreads();
      E::add_scores(values, memory.left[0], memory.right, source.cols);
    }
  }
  return values;
}

// sums += weights right, where `right` is a tile of tokens; sums[c] holds features [64 c, 64 c + 64).
template <typename E, int chunks, typename Memory, typename T>
__device__ __forceinline__ void add_weighted(typename E::Values (&sums)[chunks], Memory& memory,
                                             const typename E::Weights& weights, const Head<T>& right, int64_t token) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    if (c * tile_size >= right.head_size) continue;
    const auto source = right.tile(token, c * tile_size);
    const auto fetched = E::fetch(source);
    __syncthreads();  // until no thread reads the tiles' old content
    if (c == 0) E::put_weights(memory.left[0], weights);
    E::put_for_sums(memory.right, fetched);
    __syncthreads();
    E::add_weighted(sums[c], memory.left[0], weights, memory.right, source.rows, source.cols);
  }
}

// Stores sums[c], multiplied by the factor of each row.
template <typename E, int chunks, typename T>
__device__ __forceinline__ void store_sums(const typename E::Values (&sums)[chunks], const float (&factors)[E::rows],
                                           const Head<T>& to, int64_t token) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const int64_t row = token + E::row(i);
    if (row >= to.tokens) continue;
    T* const features = to.data + row * to.stride;
#pragma unroll
    for (int c = 0; c < chunks; ++c)
#pragma unroll
      for (int j = 0; j < E::cols; ++j) {
        const int feature = c * tile_size + E::feature(j);
        if (feature < to.head_size) features[feature] = rounded_to<T>(sums[c].at[i][j] * factors[i]);
      }
  }
}

// Returns the sizes of either op. `operands`: all its matrices of heads.
template <typename Op>
Sizes sizes_of(const Op& op, std::initializer_list<Matrix> operands, const int32_t* wanted) {
  return {op.batch,
          op.sequence_length,
          op.num_heads,
          op.num_kv_heads,
          static_cast<int>(op.head_size),
          static_cast<float>(op.scale),
          op.mask.causal,
          op.head_size % pack_width == 0 && in_packs(operands),
          static_cast<int>(std::min(op.mask.window, op.sequence_length)),
          op.mask.document_starts,
          wanted};
}

// Calls body(engine, number of 64-feature chunks as a constant). Tensor cores serve head sizes whose backward sums fit
// in registers.
template <typename Body>
void with_engine(DType dtype, int64_t head_size, const Body& body) {
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  using Four = std::integral_constant<int, 4>;
  if (head_size > gpu_most_head_size) throw std::logic_error("attention: a head is too long for the kernels");
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    using Engine = std::conditional_t<std::is_same_v<T, float>, FmaEngine<T>, MmaEngine<T>>;
    if (head_size <= tile_size) return body(Engine{}, One{});
    if (head_size <= 2 * tile_size) return body(Engine{}, Two{});
    body(FmaEngine<T>{}, Four{});
  });
}

}  // namespace gptrain::cuda::attention
