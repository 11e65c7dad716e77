// Shared by the attention kernels: heads of a matrix, products of their tiles by an engine, and dropout.
#pragma once

#include <array>
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

// A tile of tokens at places of the picked order (ops/key_tiles.h), beside a TileSource's members.
template <typename T>
struct PickedSource {
  using Element = T;

  const T* data;
  int64_t stride;
  int rows, cols;
  bool packs;
  const KeyTiles<true>* tiles;
  int first;  // place of the first row, in the picked or the natural order
  bool picked;

  __device__ const T* row(int i) const {
    const int token = picked ? tiles->picked_token(first + i) : first + i;
    return token < tiles->tokens ? data + token * stride : nullptr;
  }
};

// One head of one sequence: [tokens, head_size].
template <typename T>
struct Head {
  T* data;
  int64_t stride, tokens;
  int head_size;
  bool packs;
};

// Rows of a head at consecutive places of an order.
template <typename T, bool several_runs>
struct PlacedRows {
  const Head<T>& head;
  const KeyTiles<several_runs>& tiles;
  int first;  // place of the first row, in the picked or the natural order
  bool picked;

  // Returns a tile of the rows that starts at a feature.
  __device__ auto tile(int feature) const {
    using Element = std::remove_const_t<T>;
    const int left = (several_runs && picked ? tiles.num_keys(true) : static_cast<int>(head.tokens)) - first;
    const int rows = left < tile_size ? left : tile_size;
    const int cols = head.head_size - feature < tile_size ? head.head_size - feature : tile_size;
    if constexpr (several_runs) {
      return PickedSource<Element>{head.data + feature, head.stride, rows, cols, head.packs, &tiles, first, picked};
    } else {
      return TileSource<Element>{head.data + first * head.stride + feature, head.stride, rows, cols, head.packs};
    }
  }
};

// A score as the softmax takes it, and its derivative by scale * q . k.
struct CappedScore {
  float value, slope;
};

// Scaling of scores q . k.
struct ScoreScale {
  float factor;
  float softcap;  // bound of scaled scores; 0: none

  // `score`: q . k, or minus infinity for a key that a query does not see.
  __device__ CappedScore of(float score) const {
    const float scaled = score * factor;
    if (softcap == 0) return {scaled, 1};
    const float t = tanhf(scaled / softcap);
    return {score == -infinity ? score : softcap * t, 1 - t * t};
  }
};

// RETURN the row of a place's query or key in the op's matrices.
template <bool several_runs>
__device__ int query_row(const KeyTiles<several_runs>& tiles, int place) {
  return several_runs ? tiles.query_token(place) : place;
}
template <bool several_runs>
__device__ int key_row(const KeyTiles<several_runs>& tiles, int place, bool picked) {
  return several_runs ? tiles.key_token(place, picked) : place;
}

template <bool several_runs>
struct Sizes {
  int64_t batch, tokens, heads, kv_heads;
  int head_size;
  ScoreScale scale;
  bool packs;
  KeyTiles<several_runs> tiles;  // a pass of the last set of columns, which has the most
  int column_sets;
  const int32_t* document_starts;  // [batch, tokens] or null
  const int32_t* wanted;           // [batch] or null

  template <typename T>
  __device__ Head<T> head(const Rows<T>& matrix, int64_t sequence, int64_t head) const {
    return {matrix.at(sequence * tokens, head * head_size), matrix.stride, tokens, head_size, packs};
  }
  // Returns a head of keys, values or their gradients: in a part of a sequence, not as many rows as there are queries.
  template <typename T>
  __device__ Head<T> key_head(const Rows<T>& matrix, int64_t sequence, int64_t head) const {
    const int64_t keys = tiles.natural_count;
    return {matrix.at(sequence * keys, head * head_size), matrix.stride, keys, head_size, packs};
  }
  __device__ bool leaves_out(int64_t sequence) const { return wanted != nullptr && wanted[sequence] == 0; }
  __device__ int64_t heads_of_group() const { return heads / kv_heads; }
  __device__ KeyTiles<several_runs> tiles_of(int64_t sequence, int64_t head) const {
    KeyTiles<several_runs> own = tiles;
    if (document_starts != nullptr) own.document_starts = document_starts + sequence * tokens;
    if constexpr (several_runs) own.first_column = own.column_of_set(static_cast<int>(head % column_sets));
    return own;
  }
};

// The keys that a query sees, as at most two ranges of places (KeyTiles), counted from the first place of a tile of
// keys.
struct SeenPlaces {
  PlaceRange front, back;

  __device__ bool contain(int place) const { return front.contains(place) || back.contains(place); }
};

// RETURNS the places that the query at `place` sees. An empty place sees none. A place after the last query counts as
// the last query.
template <bool several_runs>
__device__ __forceinline__ SeenPlaces seen_places(const KeyTiles<several_runs>& tiles, int place, const KeyTile& key) {
  const auto relative = [&](const PlaceRange& range) {
    return PlaceRange{range.first - key.first(), range.end - key.first()};
  };
  const int last = tiles.num_queries() - 1;
  const int query = tiles.query_token(place < last ? place : last);
  if constexpr (several_runs) {
    if (query >= tiles.tokens) return {};
    const SeenKeys seen = tiles.seen(query);
    if (key.picked) return {relative(seen.picked), {}};
    return {relative(seen.global), relative(seen.local)};
  } else {
    return {relative(tiles.seen(query).local), {}};
  }
}

// Sets scores of keys that a query does not see to minus infinity, so that their probabilities are zero. Two versions:
// rows are queries, or rows are keys.
template <typename E, bool several_runs>
__device__ __forceinline__ void hide_unseen(typename E::Values& values, const KeyTiles<several_runs>& tiles,
                                            int query_tile, const KeyTile& key) {
  if (tiles.whole(query_tile, key)) return;
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const SeenPlaces seen = seen_places(tiles, query_tile * tile_size + E::row(i), key);
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      if (!seen.contain(E::score_column(j))) values.at[i][j] = -infinity;
    }
  }
}

template <typename E, bool several_runs>
__device__ __forceinline__ void hide_unseen_by_key(typename E::Values& values, const KeyTiles<several_runs>& tiles,
                                                   int query_tile, const KeyTile& key) {
  if (tiles.whole(query_tile, key)) return;
#pragma unroll
  for (int j = 0; j < E::cols; ++j) {
    const SeenPlaces seen = seen_places(tiles, query_tile * tile_size + E::score_column(j), key);
#pragma unroll
    for (int i = 0; i < E::rows; ++i) {
      if (!seen.contain(E::row(i))) values.at[i][j] = -infinity;
    }
  }
}

// Returns the probability of a key from its capped score.
__device__ inline float probability(float score, float lse) { return exp2f((score - lse) * log2_e); }

// Dropout of the probabilities of one head and sequence.
struct HeadDropout {
  uint32_t threshold;
  PhiloxKey key;
  uint32_t sample_low, sample_high;

  // Returns the words of the keys [4 group, 4 group + 4).
  __device__ std::array<uint32_t, 4> words(int query, int group) const {
    return philox(key, {static_cast<uint32_t>(group), static_cast<uint32_t>(query), sample_low, sample_high});
  }
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

// Bits of the kept probabilities of a tile. All threads draw them once, in Philox's groups of four keys where these are
// neighbours, independent of the elements that a thread holds.
struct KeptBits {
  uint16_t of_query[tile_size][tile_size / 16];

  __device__ bool at(int query, int key) const { return (of_query[query][key / 16] >> (key % 16) & 1) != 0; }

  template <int threads, bool several_runs>
  __device__ __forceinline__ void draw(const HeadDropout& dropout, const KeyTiles<several_runs>& tiles, int query_tile,
                                       const KeyTile& key) {
    if (dropout.threshold == 0) return;
    constexpr int words = tile_size * tile_size / 16 / threads;
#pragma unroll 1
    for (int i = 0; i < words; ++i) {
      const int word = i * threads + static_cast<int>(threadIdx.x);
      const int row = word / (tile_size / 16), part = word % (tile_size / 16);
      const int query = tiles.query_token(query_tile * tile_size + row);
      const int place = key.first() + 16 * part, token = tiles.first_key + place;
      uint32_t kept = 0;
      if (several_runs && key.picked) {
        kept = kept_one_by_one(dropout, query, [&](int n) { return tiles.picked_token(place + n); });
      } else if (!several_runs && token % 4 != 0) {
        kept = kept_one_by_one(dropout, query, [&](int n) { return token + n; });
      } else {
        kept = kept_by_four(dropout, query, token);
      }
      of_query[row][part] = static_cast<uint16_t>(kept);
    }
  }

 private:
  __device__ static uint32_t kept_by_four(const HeadDropout& dropout, int query, int first_key) {
    uint32_t kept = 0;
    for (int group = 0; group < 4; ++group) {
      const auto drawn = dropout.words(query, first_key / 4 + group);
      for (size_t n = 0; n < 4; ++n) kept |= uint32_t{drawn[n] >= dropout.threshold} << (4 * group + n);
    }
    return kept;
  }
  template <typename TokenOf>
  __device__ static uint32_t kept_one_by_one(const HeadDropout& dropout, int query, const TokenOf& token_of) {
    uint32_t kept = 0;
    for (int n = 0; n < 16; ++n) {
      const int token = token_of(n);
      const auto drawn = dropout.words(query, token / 4);
      // An index that is no constant would put the words into local memory.
      const uint32_t first_pair = token % 2 == 0 ? drawn[0] : drawn[1];
      const uint32_t second_pair = token % 2 == 0 ? drawn[2] : drawn[3];
      kept |= uint32_t{(token % 4 < 2 ? first_pair : second_pair) >= dropout.threshold} << n;
    }
    return kept;
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
template <typename E, int chunks, typename Memory, typename Left>
__device__ __forceinline__ void keep_left(Memory& memory, int operand, const Left& left) {
  if constexpr (E::keeps_left) {
    for (int c = 0; c < chunks; ++c) {
      if (c * tile_size >= left.head.head_size) break;
      E::put_for_scores(memory.left[operand * chunks + c], E::fetch(left.tile(c * tile_size)));
    }
  }
}

// values = left right^T of two tiles of tokens. `operand`: index of `left` among the operands that stay.
template <typename E, int chunks, typename Memory, typename Left, typename Right>
__device__ __forceinline__ typename E::Values scores(Memory& memory, int operand, const Left& left,
                                                     const Right& right) {
  typename E::Values values;
  for (int c = 0; c < chunks; ++c) {
    const int feature = c * tile_size;
    if (feature >= right.head.head_size) break;
    const auto source = right.tile(feature);
    const auto fetched = E::fetch(source);
    if constexpr (E::keeps_left) {
      __syncthreads();  // until no thread reads the tiles' old content
      E::put_for_scores(memory.right, fetched);
      __syncthreads();
      E::add_scores(values, memory.left[operand * chunks + c], memory.right, source.cols);
    } else {
      const auto left_fetched = E::fetch(left.tile(feature));
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
template <typename E, int chunks, typename Memory, typename Right>
__device__ __forceinline__ void add_weighted(typename E::Values (&sums)[chunks], Memory& memory,
                                             const typename E::Weights& weights, const Right& right) {
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    if (c * tile_size >= right.head.head_size) continue;
    const auto source = right.tile(c * tile_size);
    const auto fetched = E::fetch(source);
    __syncthreads();  // until no thread reads the tiles' old content
    if (c == 0) E::put_weights(memory.left[0], weights);
    E::put_for_sums(memory.right, fetched);
    __syncthreads();
    E::add_weighted(sums[c], memory.left[0], weights, memory.right, source.rows, source.cols);
  }
}

// Calls body(c, j, feature) for the elements of a row of sums that exist.
template <typename E, int chunks, typename Body>
__device__ __forceinline__ void for_each_feature(int head_size, const Body& body) {
#pragma unroll
  for (int c = 0; c < chunks; ++c)
#pragma unroll
    for (int j = 0; j < E::cols; ++j) {
      const int feature = c * tile_size + E::feature(j);
      if (feature < head_size) body(c, j, feature);
    }
}

// Stores sums[c], multiplied by the factor of each row, in the rows of tokens. token_of(i): that of row i; the head's
// number of tokens or more: none.
template <typename E, int chunks, typename T, typename TokenOf>
__device__ __forceinline__ void store_sums(const typename E::Values (&sums)[chunks], const float (&factors)[E::rows],
                                           const Head<T>& to, const TokenOf& token_of) {
#pragma unroll
  for (int i = 0; i < E::rows; ++i) {
    const int64_t row = token_of(i);
    if (row >= to.tokens) continue;
    T* const features = to.data + row * to.stride;
    for_each_feature<E, chunks>(to.head_size, [&](int c, int j, int feature) {
      features[feature] = rounded_to<T>(sums[c].at[i][j] * factors[i]);
    });
  }
}

// Returns the tiles of a pass of either op. `part`: the part of a sequence that the op computes, or null.
template <bool several_runs, typename Op>
KeyTiles<several_runs> tiles_of(const Op& op, const AttentionPart* part, int pass) {
  if (part != nullptr) return KeyTiles<several_runs>::of_part(op.mask, op.sequence_length, *part, nullptr).pass(pass);
  return KeyTiles<several_runs>::of(op.mask, op.sequence_length, op.mask.pattern.column_sets - 1, nullptr).pass(pass);
}

// Returns the sizes of either op. `operands`: all its matrices of heads.
template <bool several_runs, typename Op>
Sizes<several_runs> sizes_of(const Op& op, const KeyTiles<several_runs>& tiles, std::initializer_list<Matrix> operands,
                             const int32_t* wanted) {
  return {.batch = op.batch,
          .tokens = op.sequence_length,
          .heads = op.num_heads,
          .kv_heads = op.num_kv_heads,
          .head_size = static_cast<int>(op.head_size),
          .scale = {static_cast<float>(op.scale), static_cast<float>(op.softcap)},
          .packs = op.head_size % pack_width == 0 && in_packs(operands),
          .tiles = tiles,
          .column_sets = static_cast<int>(op.mask.pattern.column_sets),
          .document_starts = op.mask.document_starts,
          .wanted = wanted};
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
