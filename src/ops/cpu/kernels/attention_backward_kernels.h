// Attention of one query head, backward. Included only by matrix_kernels.cpp.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/kernels/attention_backward_tiles.h"
#include "ops/cpu/kernels/attention_gradients.h"

namespace gptrain::inline ops {
namespace {

// Turns scores = q k^T into probabilities and d_scores = d_o v^T into gradients, in place.
template <int width>
void softmax_backward(float* scores, float* d_scores, const GradientTile& tile, const ScoreRows<width>& rows) {
  alignas(64) float factors[tile_size];
  const ScoreFactors score_factors(tile.head);
  const bool drops = tile.head.drop_threshold != 0;
  for (int64_t row = rows.first; row < rows.end(); ++row) {
    float* const p_row = scores + row * tile_size + rows.keys.first;
    float* const ds_row = d_scores + row * tile_size + rows.keys.first;
    if (drops) dropout_factors(factors, tile, row);
    for (int64_t col = 0; col < rows.cols(); col += lanes) {
      const KeyGradients result =
          softmax_gradients(load(p_row + col), load(ds_row + col), drops ? factors + rows.keys.first + col : nullptr,
                            broadcast(tile.lse[row]), broadcast(tile.delta[row]), score_factors);
      store(p_row + col, result.p);
      store(ds_row + col, result.ds);
    }
  }
}

// Writes the same in pairs, two rows at a time: p and ds as pairs of rows, [tile_size / 2][tile_size], and ds as pairs
// along the columns, [tile_size][tile_size / 2]. After an odd number of rows comes one with zero scores; its infinite
// log-sum-exp turns them into zero probabilities. Calls ahead() for each two rows.
template <bool drops, int width, typename F>
void softmax_backward_pairs(const float* scores, const float* d_scores, const GradientTile& tile,
                            const ScoreRows<width>& rows, const AttentionBackwardBuffers& buffers, F& ahead) {
  alignas(64) float factors[2][tile_size];
  const ScoreFactors score_factors(tile.head);
  const int64_t first_key = rows.keys.first;
  for (int64_t row = rows.first; row < rows.end(); row += 2) {
    ahead();
    float lse[2] = {tile.lse[row], -minus_infinity}, delta[2] = {tile.delta[row], 0};
    if (row + 1 < tile.queries) {
      lse[1] = tile.lse[row + 1];
      delta[1] = tile.delta[row + 1];
    }
    for (int r = 0; r < 2 && drops; ++r) dropout_factors(factors[r], tile, row + r);
    const float* const row_scores = scores + row * tile_size + first_key;
    const float* const row_d_scores = d_scores + row * tile_size + first_key;
    Unit* const p_pairs = buffers.p_pairs + row * (tile_size / 2) + first_key;
    Unit* const ds_pairs = buffers.ds_pairs + row * (tile_size / 2) + first_key;
    Unit* const ds_rows = buffers.ds_rows + row * (tile_size / 2) + rows.keys.first / 2;
    const float* const row_factors = factors[0] + first_key;
    for (int64_t col = 0; col < rows.cols(); col += 2 * lanes) {
      KeyGradients of[2][2];
      for (int r = 0; r < 2; ++r) {
        for (int n = 0; n < 2; ++n) {
          const int64_t at = r * tile_size + col + n * lanes;
          of[r][n] =
              softmax_gradients(load(row_scores + at), load(row_d_scores + at), drops ? row_factors + at : nullptr,
                                broadcast(lse[r]), broadcast(delta[r]), score_factors);
        }
      }
      for (int n = 0; n < 2; ++n) {
        store(p_pairs + col + n * lanes, pair_lanes(of[0][n].p, of[1][n].p));
        store(ds_pairs + col + n * lanes, pair_lanes(of[0][n].ds, of[1][n].ds));
      }
      for (int r = 0; r < 2; ++r) {
        store(ds_rows + r * (tile_size / 2) + col / 2, pair_neighbours(of[r][0].ds, of[r][1].ds));
      }
    }
  }
}

// Lanes of `value` as floats.
inline Vec load_lanes(const float* from) { return load(from); }
inline Vec load_lanes(const bf16* from) {
  using Halves [[gnu::vector_size(lanes * 2)]] = uint16_t;
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return reinterpret_cast<Vec>(__builtin_convertvector(halves, BitsVec) << 16);
}

// Computes sums over features of o d_o, for as many rows at a time as a vector has lanes.
template <typename T>
class RowProducts {
 public:
  explicit RowProducts(int64_t head_size) : head_size_(head_size) {}
  // Sets *to at the latest in flush.
  void add(float* to, const T* o, const T* d_o) {
    tails_[count_] = sum_by_lane(partial_ + count_ * 16, o, d_o);
    to_[count_++] = to;
    if (count_ == lanes) flush();
  }
  void flush() {
    alignas(64) Unit by_lane[16 * lanes];
    transpose(by_lane, lanes, reinterpret_cast<const Unit*>(partial_), 16, lanes, 16);
    Vec sums = load(tails_);
    for (int64_t i = 0; i < 16; ++i) sums += load(by_lane + i * lanes);
    store(tails_, sums);
    for (int i = 0; i < count_; ++i) *to_[i] = tails_[i];
    count_ = 0;
  }

 private:
  // Sets 16 partial sums. RETURNS the sum of the rest.
  float sum_by_lane(float* partial, const T* o, const T* d_o) const {
    Vec sums[16 / lanes] = {};
    int64_t col = 0;
    for (; col + 16 <= head_size_; col += 16) {
      for (int i = 0; i < 16 / lanes; ++i)
        sums[i] += load_lanes(o + col + i * lanes) * load_lanes(d_o + col + i * lanes);
    }
    for (int i = 0; i < 16 / lanes; ++i) store(partial + i * lanes, sums[i]);
    float rest = 0;
    for (; col < head_size_; ++col) rest += as_float(o[col]) * as_float(d_o[col]);
    return rest;
  }

  int64_t head_size_;
  int count_ = 0;
  float* to_[lanes];
  alignas(64) float partial_[16 * lanes] = {};
  alignas(64) float tails_[lanes] = {};
};

// RETURNS the offset of a query tile in q, d_o and dq.
template <bool pairs>
int64_t kept_offset(int query_tile, const Packing<pairs>& packing, const AttentionBackwardBuffers& buffers) {
  return (query_tile - buffers.query_tiles.first) % buffers.kept_tiles * packing.tile;
}

// Prepares a tile of queries in the natural order: packed q and d_o, and delta = d_o . o.
template <typename T, bool pairs>
void prepare_queries(const AttentionHead& head, int query_tile, const Packing<pairs>& packing,
                     const AttentionBackwardBuffers& buffers) {
  const int64_t query = int64_t{query_tile} * tile_size, rows = smaller(tile_size, head.tokens - query);
  const int64_t offset = kept_offset(query_tile, packing, buffers);
  const auto pack = [&](Unit* out, const PlacedRows<T>& from) {
    const T* const at = from.data + query * from.stride;
    if constexpr (pairs && tile_products) {
      pack_for_tiles(out, buffers.k_rows, packing, at, from.stride, rows);
    } else {
      pack_both<T, pairs>(out, packing, at, from.stride, rows);
    }
  };
  const PlacedRows<T> o = rows_of<T>(head.o, head.o_stride), d_o = rows_of<T>(head.d_o, head.d_o_stride);
  pack(buffers.q + offset, rows_of<T>(head.q, head.q_stride));
  pack(buffers.d_o + offset, d_o);
  RowProducts<T> products(head.head_size);
  for (int64_t row = query; row < query + rows; ++row)
    products.add(buffers.delta + row, o.data + row * o.stride, d_o.data + row * d_o.stride);
  products.flush();
}

// Packs the keys and values of a tile.
template <typename T, bool pairs>
PackedKeys pack_keys(const AttentionHead& head, const Packing<pairs>& packing, const KeyTile& key, int64_t keys,
                     const AttentionBackwardBuffers& buffers) {
  PackedKeys packed{buffers.k, buffers.v, buffers.k_rows};
  if (key.picked && buffers.picked_k != nullptr) {
    const int64_t offset = (key.tile - buffers.query_tiles.first) * packing.tile;
    const Unit *const k = buffers.picked_k + offset, *const v = buffers.picked_v + offset;
    if constexpr (pairs && tile_products) {
      packed.k = k;
      packed.v = v;
    } else {
      pack_transposed(buffers.v, packing, v);
      pack_transposed(buffers.k, packing, k);
    }
    if constexpr (pairs) {
      pack_pairs_of(buffers.k_rows, packing, k);
    } else {
      packed.k_rows = k;
    }
    return packed;
  }
  const OperandRows<T, 2> operands{rows_of<T>(head.k, head.k_stride), rows_of<T>(head.v, head.v_stride)};
  const auto [k, v] = rows_at(head, operands, key.picked, key.first(), keys, buffers.gathered);
  if (pairs && tile_products && buffers.picked_k != nullptr) {  // queries are picked
    pack_rows<pairs>(buffers.v, packing.row_units, v.data, v.stride, keys, head.head_size);
    pack_rows<pairs>(buffers.k, packing.row_units, k.data, k.stride, keys, head.head_size);
  } else {
    pack_columns<T>(buffers.v, buffers.k_rows, packing, v, keys);
    pack_columns<T>(buffers.k, buffers.k_rows, packing, k, keys);
  }
  if constexpr (pairs) {
    pack_row_pairs(buffers.k_rows, packing.width, k.data, k.stride, keys, head.head_size);
  } else {
    pack_rows<false>(buffers.k_rows, packing.row_units, k.data, k.stride, keys, head.head_size);
  }
  return packed;
}

// to [rows, cols] = from^T, with from [cols][tile_size]. `buffer` is [tile_size][tile_size].
template <typename T>
void store_transposed(T* to, int64_t to_stride, const float* from, float* buffer, int64_t rows, int64_t cols) {
  for (int64_t col = 0; col < cols; col += tile_size) {
    const int64_t count = smaller(tile_size, cols - col);
    transpose(reinterpret_cast<Unit*>(buffer), tile_size, reinterpret_cast<const Unit*>(from + col * tile_size),
              tile_size, round_up(count, 16), tile_size);
    store_rows(to + col, to_stride, buffer, tile_size, rows, count, 1.0F);
  }
}

// Adds the products of one tile of scores to dk and dv. RETURNS ds for dq.
template <bool pairs, typename F>
LeftOperand add_key_gradients_by_query(const GradientTile& at, const GradientKeys& of, const Packing<pairs>& packing,
                                       const Unit* q, const Unit* d_o, const AttentionBackwardBuffers& buffers,
                                       [[maybe_unused]] F& ahead) {
  const int64_t rows = round_up(at.queries, product_rows), key_rows = round_up(of.keys, product_rows);
  float* const scores = buffers.scores;
  float* const d_scores = buffers.d_scores;
  const TileMask& mask = at.mask;
  product_of_seen<pairs>(scores, {q, packing.row_units, 1}, of.packed.k, rows, packing.depth, mask);
  product_of_seen<pairs>(d_scores, {d_o, packing.row_units, 1}, of.packed.v, rows, packing.depth, mask);
  cap_scores(scores, at.queries, at.head, mask);
  mask_scores(scores, at.queries, mask);
  LeftOperand p_transposed{buffers.p_pairs, 1, tile_size};
  LeftOperand ds_transposed{buffers.ds_pairs, 1, tile_size};
  LeftOperand ds{buffers.ds_rows, tile_size / 2, 1};
  if constexpr (pairs) {
    mask.each_width<2 * lanes>(at.queries, [&](const auto& seen) {
      at.head.drop_threshold != 0 ? softmax_backward_pairs<true>(scores, d_scores, at, seen, buffers, ahead)
                                  : softmax_backward_pairs<false>(scores, d_scores, at, seen, buffers, ahead);
    });
    const int64_t filled = round_up(at.queries, 2) * tile_size / 2;  // units
    Unit* const all[] = {buffers.p_pairs, buffers.ds_pairs, buffers.ds_rows};
    for (Unit* const units : all) std::memset(units + filled, 0, (tile_size * tile_size / 2 - filled) * 4);
  } else {
    mask.each_width<lanes>(at.queries, [&](const auto& seen) { softmax_backward(scores, d_scores, at, seen); });
    const auto rest = static_cast<size_t>((tile_size - at.queries) * tile_size * 4);
    std::memset(scores + at.queries * tile_size, 0, rest);
    std::memset(d_scores + at.queries * tile_size, 0, rest);
    p_transposed.units = reinterpret_cast<const Unit*>(scores);
    ds_transposed.units = reinterpret_cast<const Unit*>(d_scores);
    ds = {ds_transposed.units, tile_size, 1};
  }
  const int64_t pairs_offset = pairs ? packing.tile / 2 : 0;  // offset of the rows for sums over the rows
  const int64_t query_units = packing.token_units(at.queries);
  if constexpr (pairs && tile_products) {
    // dv^T = d_o^T p and dk^T = q^T ds: p and ds need no packing as right factors of tiles.
    mask.each_strip(mask.queries, key_rows, [&](int64_t first, int64_t count, const PlaceRange& summed) {
      const int64_t from = summed.first / 2, end = smaller(summed.end / 2, query_units);
      const ProductSizes sizes{packing.cols, count, end > from ? end - from : 0};
      const int64_t right = from * tile_size + first;
      product<pairs>({of.dv + first, tile_size}, {d_o + pairs_offset + from, tile_size / 2, 1},
                     {p_transposed.units + right, tile_size}, sizes, of.adds);
      product<pairs>({of.dk + first, tile_size}, {q + pairs_offset + from, tile_size / 2, 1},
                     {ds_transposed.units + right, tile_size}, sizes, of.adds);
    });
    return ds;
  }
  const ProductSizes sizes{key_rows, packing.cols, query_units};
  product_over_seen<pairs>({of.dv, packing.width}, p_transposed, {d_o + pairs_offset, packing.width}, sizes, of.adds,
                           mask, mask.queries);
  product_over_seen<pairs>({of.dk, packing.width}, ds_transposed, {q + pairs_offset, packing.width}, sizes, of.adds,
                           mask, mask.queries);
  return ds;
}

// Adds the products of one tile of scores to dq, dk and dv. `adds_to_dq` false: overwrites dq.
template <bool pairs, typename F>
void add_gradients(const AttentionHead& head, const KeyTiles<true>& tiles, int query_tile, const GradientKeys& of,
                   bool adds_to_dq, const AttentionBackwardBuffers& buffers, F& ahead) {
  const Packing<pairs> packing(head.head_size);
  const int64_t place = int64_t{query_tile - buffers.query_tiles.first} * tile_size;  // place in delta and lse
  const int64_t queries = smaller(tile_size, tiles.num_queries() - int64_t{query_tile} * tile_size);
  const int64_t rows = round_up(queries, product_rows);
  const int64_t kept = kept_offset(query_tile, packing, buffers);
  const float* const lse = tiles.picked_queries ? buffers.lse : head.lse;
  const ScoreTile score_tile{head, tiles, query_tile, queries, of.key};
  const TileMask mask(score_tile, packing.strip_size);
  const GradientTile at{score_tile, lse + place, buffers.delta + place, mask};
  LeftOperand ds{buffers.ds_rows, tile_size / 2, 1};
  if constexpr (pairs && tile_products) {
    if (tiles.picked_queries) {
      add_key_gradients_by_key(at, of, packing, buffers.q + kept, buffers.d_o + kept, buffers);
    } else {
      ds = add_key_gradients_by_query(at, of, packing, buffers.q + kept, buffers.d_o + kept, buffers, ahead);
    }
  } else {
    ds = add_key_gradients_by_query(at, of, packing, buffers.q + kept, buffers.d_o + kept, buffers, ahead);
  }
  product_over_seen<pairs>({buffers.dq + kept, packing.width}, ds, {of.packed.k_rows, packing.width},
                           {rows, packing.cols, packing.token_units(of.keys)}, adds_to_dq, mask, mask.keys);
}

// RETURNS the sums of a tile of keys as rows, in memory of packed keys if they are not. By natural queries, AMX tiles
// sum them transposed.
template <bool pairs>
const float* sums_by_row(const float* sums, const KeyTiles<true>& tiles, const Packing<pairs>& packing, int64_t keys,
                         const AttentionBackwardBuffers& buffers) {
  if (!pairs || !tile_products || tiles.picked_queries) return sums;
  float* const rows = reinterpret_cast<float*>(buffers.k);
  store_transposed(rows, packing.width, sums, buffers.scores, keys, packing.head_size);
  return rows;
}

// Stores the gradients of a tile of keys of the natural order.
template <typename T, bool pairs>
void store_keys(const PlacedRows<T>& to, const float* sums, const GradientKeys& of, const Packing<pairs>& packing,
                const AttentionBackwardBuffers& buffers) {
  T* const rows = const_cast<T*>(to.data) + of.key.first() * to.stride;
  if constexpr (pairs && tile_products) {
    store_transposed(rows, to.stride, sums, buffers.scores, of.keys, packing.head_size);
  } else {
    store_rows(rows, to.stride, sums, packing.width, of.keys, packing.head_size, 1.0F);
  }
}

// Stores rows of sums of picked tokens past the caches.
template <typename T, bool pairs>
void stream_picked(const PlacedRows<T>& to, const float* rows, const PlacedTokens& tokens,
                   const Packing<pairs>& packing) {
  for (int64_t row = 0; row < tokens.count; ++row) {
    if (tokens.at[row] < tokens.end)
      stream_row(const_cast<T*>(to.data) + tokens.at[row] * to.stride, rows + row * packing.width, packing.head_size,
                 1.0F);
  }
}

// RETURNS whether sums over orders of keys end with this pass, which sees each natural key, and begin with the pass
// before it, which sees picked ones.
inline bool ends_sums(const KeyTiles<true>& tiles) {
  return tiles.kind == AttentionKind::strided && !tiles.picked_queries;
}
inline bool begins_sums(const KeyTiles<true>& tiles) {
  return tiles.kind == AttentionKind::strided && tiles.picked_queries;
}

// Adds a tile's sums to those of their tokens. `begins`: overwrites those, with zeros if no query sees the tile.
template <bool pairs>
void add_keys(float* totals, const float* sums, const KeyTiles<true>& tiles, const GradientKeys& of, bool begins,
              const Packing<pairs>& packing, const AttentionBackwardBuffers& buffers) {
  const bool seen = of.packed.k_rows != nullptr;
  if (!seen && !begins) return;
  const float* const rows = seen ? sums_by_row(sums, tiles, packing, of.keys, buffers) : nullptr;
  const PlacedTokens tokens(tiles, of.key.picked, of.key.first(), of.keys);
  for (int64_t row = 0; row < of.keys; ++row) {
    if (tokens.at[row] >= tiles.tokens) continue;
    float* const to = totals + tokens.at[row] * packing.width;
    if (!seen) {
      std::memset(to, 0, packing.cols * 4);
      continue;
    }
    const float* const from = rows + row * packing.width;
    if (begins) {
      stream_row(to, from, packing.cols, 1.0F);
      continue;
    }
    for (int64_t col = 0; col < packing.cols; col += lanes) store(to + col, load(to + col) + load(from + col));
  }
}

// Stores the gradients of a tile of natural keys: the sums of their tokens and the tile's.
template <typename T, bool pairs>
void store_totals(const PlacedRows<T>& to, const float* totals, const float* sums, const KeyTiles<true>& tiles,
                  const GradientKeys& of, const Packing<pairs>& packing, const AttentionBackwardBuffers& buffers) {
  const float* const rows = sums_by_row(sums, tiles, packing, of.keys, buffers);
  float* const added = buffers.scores;
  const int64_t first = of.key.first();
  for (int64_t row = 0; row < of.keys; ++row) {
    for (int64_t col = 0; col < packing.cols; col += lanes)
      store(added + col, load(totals + (first + row) * packing.width + col) + load(rows + row * packing.width + col));
    store_rows(const_cast<T*>(to.data) + (first + row) * to.stride, 0, added, 0, 1, packing.head_size, 1.0F);
  }
}

inline PlaceRange common(const PlaceRange& a, const PlaceRange& b) {
  return {a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};
}

// RETURNS whether dq is zero before the first tile of keys, as that need not be seen by all queries.
inline bool adds_to_zero(const AttentionHead& head, const AttentionBackwardBuffers& buffers) {
  return buffers.dq_sums != nullptr || head.is_part;
}

// Computes the gradients of a tile of keys, and adds its share to dq. `ahead`: see LinesAhead.
template <typename T, bool pairs, typename F>
void backward_keys(const AttentionHead& head, const KeyTiles<true>& tiles, const KeyTile& key, const GroupSpan& group,
                   const AttentionBackwardBuffers& buffers, F ahead) {
  const Packing<pairs> packing(head.head_size);
  const int64_t offset = buffers.grouped ? (key.tile - buffers.query_tiles.first) * packing.tile : 0;
  GradientKeys of{.key = key,
                  .keys = smaller(tile_size, tiles.num_keys(key.picked) - key.first()),
                  .packed = {},
                  .dk = buffers.dk + offset,
                  .dv = buffers.dv + offset,
                  .adds = buffers.grouped && !group.first};
  const PlaceRange query_tiles = common(tiles.query_tiles(key), buffers.query_tiles);
  for (int tile = query_tiles.first; tile < query_tiles.end; ++tile) {
    const KeyRuns runs = tiles.runs(tile);
    if (!runs.contains(key)) continue;
    if (of.packed.k_rows == nullptr) of.packed = pack_keys<T, pairs>(head, packing, key, of.keys, buffers);
    // In the last pass every query sees a key; the first of these begins its dq.
    const bool begins_dq = !adds_to_zero(head, buffers) && runs[0].tile == key.tile && runs[0].picked == key.picked;
    add_gradients<pairs>(head, tiles, tile, of, !begins_dq, buffers, ahead);
    of.adds = true;
  }
  if (head.is_part && !of.adds) {
    std::memset(of.dk, 0, packing.tile * 4);
    std::memset(of.dv, 0, packing.tile * 4);
  }
  if (buffers.dk_sums != nullptr) {
    if (ends_sums(tiles) && group.last) {
      store_totals(rows_of<T>(head.dk, head.dk_stride), buffers.dk_sums, of.dk, tiles, of, packing, buffers);
      store_totals(rows_of<T>(head.dv, head.dv_stride), buffers.dv_sums, of.dv, tiles, of, packing, buffers);
      return;
    }
    const bool begins = begins_sums(tiles) && group.first;
    add_keys(buffers.dk_sums, of.dk, tiles, of, begins, packing, buffers);
    add_keys(buffers.dv_sums, of.dv, tiles, of, begins, packing, buffers);
  } else if (group.last && buffers.picked_k != nullptr) {
    const PlacedTokens tokens(tiles, true, key.first(), of.keys);
    stream_picked(rows_of<T>(head.dk, head.dk_stride), of.dk, tokens, packing);
    stream_picked(rows_of<T>(head.dv, head.dv_stride), of.dv, tokens, packing);
  } else if (group.last) {
    const auto store = [&](auto element) {
      using Element = decltype(element);
      store_keys(rows_of<Element>(head.dk, head.dk_stride), of.dk, of, packing, buffers);
      store_keys(rows_of<Element>(head.dv, head.dv_stride), of.dv, of, packing, buffers);
    };
    head.is_part ? store(float()) : store(T());
  }
}

// Adds the gradients of all keys that queries of the buffers see in a pass.
template <typename T, bool pairs>
void backward_pass(const AttentionHead& head, const KeyTiles<true>& tiles, const GroupSpan& group,
                   const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  if (adds_to_zero(head, buffers)) std::memset(buffers.dq, 0, buffers.query_tiles.size() * packing.tile * 4);
  for (int key = 0; tiles.natural_keys && key < tiles.num_key_tiles(false); ++key)
    backward_keys<T, pairs>(head, tiles, {key, false}, group, buffers, NothingAhead());
  if (!tiles.picked_keys) return;
  const PlaceRange picked = tiles.picked_queries ? buffers.query_tiles : PlaceRange{0, tiles.num_key_tiles(true)};
  for (int key = picked.first; key < picked.end; ++key)
    backward_keys<T, pairs>(head, tiles, {key, true}, group, buffers, NothingAhead());
}

}  // namespace
}  // namespace gptrain::ops
