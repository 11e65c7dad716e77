// Attention of one query head, backward. Included only by matrix_kernels.cpp.
#pragma once

#include "ops/cpu/kernels/attention_kernels.h"

namespace gptrain::inline ops {
namespace {

// Probabilities after dropout, p, and gradients of q k^T, ds, of some keys of a query.
struct KeyGradients {
  Vec p, ds;
};

// RETURNS the derivative of a capped score by q k^T. A hidden score is minus infinity, and its derivative 0.
inline Vec slope_of_cap(Vec score, const AttentionHead& head) {
  const Vec t = score * (1.0F / head.softcap);
  const Vec bounded = t < -1.0F ? broadcast(-1.0F) : t;
  return (1.0F - bounded * bounded) * head.scale;
}

// Computes them from q k^T after cap_scores, and d_o v^T. `factors`: dropout's; nullptr: no dropout.
inline KeyGradients softmax_gradients(Vec score, Vec dp, const float* factors, float lse, float delta,
                                      const AttentionHead& head) {
  const Vec p = exp2((score * factor_after_cap(head) - lse) * log2_e);
  const Vec slope = head.softcap == 0.0F ? broadcast(head.scale) : slope_of_cap(score, head);
  if (factors == nullptr) return {p, p * (dp - delta) * slope};
  const Vec factor = load(factors);
  return {p * factor, p * (dp * factor - delta) * slope};
}

// A tile of scores in backward, with its queries' statistics.
struct GradientTile : ScoreTile {
  const float *lse, *delta;  // point at the first query's values
  const TileMask& mask;
};

// Turns scores = q k^T into probabilities and d_scores = d_o v^T into gradients, in place. Rows past the last query
// become zero. `strips`: mask.in_strips, as a constant.
template <bool strips>
void softmax_backward(float* scores, float* d_scores, const GradientTile& tile) {
  alignas(64) float factors[tile_size];
  const bool drops = tile.head.drop_threshold != 0;
  for (int64_t row = 0; row < tile.queries; ++row) {
    float* const p_row = scores + row * tile_size;
    float* const ds_row = d_scores + row * tile_size;
    if (drops) dropout_factors(factors, tile, row);
    const PlaceRange keys = tile.mask.template columns_of<strips>(row, lanes);
    for (int64_t col = keys.first; col < keys.end; col += lanes) {
      const KeyGradients result =
          softmax_gradients(load(p_row + col), load(ds_row + col), drops ? factors + col : nullptr, tile.lse[row],
                            tile.delta[row], tile.head);
      store(p_row + col, result.p);
      store(ds_row + col, result.ds);
    }
  }
  const size_t rest = static_cast<size_t>((tile_size - tile.queries) * tile_size * 4);
  std::memset(scores + tile.queries * tile_size, 0, rest);
  std::memset(d_scores + tile.queries * tile_size, 0, rest);
}

// Writes the same in pairs, two rows at a time: p and ds as pairs of rows, [tile_size / 2][tile_size], and ds as pairs
// along the columns, [tile_size][tile_size / 2]. After an odd number of rows comes one with zero scores; its infinite
// log-sum-exp turns them into zero probabilities.
template <bool strips>
void softmax_backward_pairs(const float* scores, const float* d_scores, const GradientTile& tile,
                            const AttentionBackwardBuffers& buffers) {
  alignas(64) float factors[2][tile_size];
  const bool drops = tile.head.drop_threshold != 0;
  for (int64_t row = 0; row < tile.queries; row += 2) {
    float lse[2] = {tile.lse[row], -minus_infinity}, delta[2] = {tile.delta[row], 0};
    if (row + 1 < tile.queries) {
      lse[1] = tile.lse[row + 1];
      delta[1] = tile.delta[row + 1];
    }
    for (int r = 0; r < 2 && drops; ++r) dropout_factors(factors[r], tile, row + r);
    const PlaceRange keys = tile.mask.template columns_of<strips>(row, 2 * lanes);
    for (int64_t col = keys.first; col < keys.end; col += 2 * lanes) {
      KeyGradients of[2][2];
      for (int r = 0; r < 2; ++r) {
        for (int n = 0; n < 2; ++n) {
          const int64_t at = (row + r) * tile_size + col + n * lanes;
          of[r][n] = softmax_gradients(load(scores + at), load(d_scores + at),
                                       drops ? factors[r] + col + n * lanes : nullptr, lse[r], delta[r], tile.head);
        }
      }
      for (int n = 0; n < 2; ++n) {
        const int64_t at = row / 2 * tile_size + col + n * lanes;
        store(buffers.p_pairs + at, pair_lanes(of[0][n].p, of[1][n].p));
        store(buffers.ds_pairs + at, pair_lanes(of[0][n].ds, of[1][n].ds));
      }
      for (int r = 0; r < 2; ++r) {
        store(buffers.ds_rows + ((row + r) * tile_size + col) / 2, pair_neighbours(of[r][0].ds, of[r][1].ds));
      }
    }
  }
  const int64_t filled = round_up(tile.queries, 2) * tile_size / 2;  // units
  Unit* const all[] = {buffers.p_pairs, buffers.ds_pairs, buffers.ds_rows};
  for (Unit* const units : all) {
    std::memset(units + filled, 0, (tile_size * tile_size / 2 - filled) * 4);
  }
}

// RETURNS the sum over features of o d_o.
template <typename T>
float product_of_rows(const T* o, const T* d_o, int64_t head_size) {
  float partial[16] = {};
  int64_t col = 0;
  for (; col + 16 <= head_size; col += 16) {
    for (int i = 0; i < 16; ++i) partial[i] += as_float(o[col + i]) * as_float(d_o[col + i]);
  }
  float sum = 0;
  for (; col < head_size; ++col) sum += as_float(o[col]) * as_float(d_o[col]);
  for (int i = 0; i < 16; ++i) sum += partial[i];
  return sum;
}

// Prepares, for the sweep over key tiles of the pass in the natural order, packed q and d_o of all queries, and delta =
// d_o . o.
template <typename T, bool pairs>
void prepare_queries(const AttentionHead& head, const Packing<pairs>& packing,
                     const AttentionBackwardBuffers& buffers) {
  for (int64_t query = 0; query < head.tokens; query += tile_size) {
    const int64_t rows = smaller(tile_size, head.tokens - query);
    const auto pack = [&](Unit* out, const PlacedRows<T>& from) {
      const T* const at = from.data + query * from.stride;
      if constexpr (pairs && tile_products) {
        pack_for_tiles(out + query * packing.width, buffers.k_rows, packing, at, from.stride, rows);
      } else {
        pack_both<T, pairs>(out + query * packing.width, packing, at, from.stride, rows);
      }
    };
    const PlacedRows<T> o = rows_of<T>(head.o, head.o_stride), d_o = rows_of<T>(head.d_o, head.d_o_stride);
    pack(buffers.q, rows_of<T>(head.q, head.q_stride));
    pack(buffers.d_o, d_o);
    for (int64_t row = query; row < query + rows; ++row)
      buffers.delta[row] = product_of_rows(o.data + row * o.stride, d_o.data + row * d_o.stride, head.head_size);
  }
}

// Packs the keys and values of a tile. RETURNS k's rows for dq. v first: its rows are not needed after transposing.
template <typename T, bool pairs>
const Unit* pack_keys(const AttentionHead& head, const Packing<pairs>& packing, const KeyTile& key, int64_t keys,
                      const AttentionBackwardBuffers& buffers) {
  if (key.picked && buffers.picked_k != nullptr) {
    const int64_t offset = (key.tile - buffers.query_tiles.first) * packing.tile;
    pack_transposed(buffers.v, packing, buffers.picked_v + offset);
    pack_transposed(buffers.k, packing, buffers.picked_k + offset);
    if constexpr (!pairs) return buffers.picked_k + offset;
    pack_pairs_of(buffers.k_rows, packing, buffers.picked_k + offset);
    return buffers.k_rows;
  }
  const OperandRows<T, 2> operands{rows_of<T>(head.k, head.k_stride), rows_of<T>(head.v, head.v_stride)};
  const auto [k, v] = rows_at(head, operands, key.picked, key.first(), keys, buffers.gathered);
  pack_rows<pairs>(buffers.k_rows, packing.row_units, v.data, v.stride, keys, packing.head_size);
  pack_transposed(buffers.v, packing, buffers.k_rows);
  const Unit* const k_for_dq = pack_both<T, pairs>(buffers.k_rows, packing, k.data, k.stride, keys);
  pack_transposed(buffers.k, packing, buffers.k_rows);
  return k_for_dq;
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

// A tile of keys in backward, packed, with the sums of its gradients.
struct GradientKeys {
  KeyTile key;
  int64_t keys;
  const Unit* k_for_dq;
  float *dk, *dv;
  bool adds;  // to dk and dv; false: overwrites them
};

// Adds the products of one tile of scores to dq, dk and dv. `adds_to_dq` false: overwrites dq.
template <typename T, bool pairs>
void add_gradients(const AttentionHead& head, const KeyTiles<true>& tiles, int query_tile, const GradientKeys& of,
                   bool adds_to_dq, const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  const int64_t pairs_offset = pairs ? packing.tile / 2 : 0;  // offset of the rows for sums over the rows
  const int64_t place = int64_t{query_tile - buffers.query_tiles.first} * tile_size;  // place in the buffers
  const int64_t queries = smaller(tile_size, tiles.num_queries() - int64_t{query_tile} * tile_size);
  const int64_t rows = round_up(queries, product_rows), key_rows = round_up(of.keys, product_rows);
  const Unit* const q = buffers.q + place * packing.width;
  const Unit* const d_o = buffers.d_o + place * packing.width;
  float* const scores = buffers.scores;
  float* const d_scores = buffers.d_scores;
  const float* const lse = tiles.picked_queries ? buffers.lse : head.lse;
  const ScoreTile score_tile{head, tiles, query_tile, queries, of.key};
  const TileMask mask(score_tile, packing.skips_hidden);
  const GradientTile at{score_tile, lse + place, buffers.delta + place, mask};
  product_of_seen<pairs>(scores, {q, packing.row_units, 1}, buffers.k, rows, packing.depth, mask);
  product_of_seen<pairs>(d_scores, {d_o, packing.row_units, 1}, buffers.v, rows, packing.depth, mask);
  cap_scores(scores, queries, head, mask);
  mask_scores(scores, queries, mask);
  LeftOperand p_transposed{buffers.p_pairs, 1, tile_size};
  LeftOperand ds_transposed{buffers.ds_pairs, 1, tile_size};
  LeftOperand ds{buffers.ds_rows, tile_size / 2, 1};
  if constexpr (pairs) {
    mask.in_strips ? softmax_backward_pairs<true>(scores, d_scores, at, buffers)
                   : softmax_backward_pairs<false>(scores, d_scores, at, buffers);
  } else {
    mask.in_strips ? softmax_backward<true>(scores, d_scores, at) : softmax_backward<false>(scores, d_scores, at);
    p_transposed.units = reinterpret_cast<const Unit*>(scores);
    ds_transposed.units = reinterpret_cast<const Unit*>(d_scores);
    ds = {ds_transposed.units, tile_size, 1};
  }
  const int64_t query_units = packing.token_units(queries);
  if constexpr (pairs && tile_products) {
    // dv^T = d_o^T p and dk^T = q^T ds: p and ds need no packing as right factors of tiles.
    const ProductSizes sizes{packing.cols, key_rows, query_units};
    product<pairs>({of.dv, tile_size}, {d_o + pairs_offset, tile_size / 2, 1}, {p_transposed.units, tile_size}, sizes,
                   of.adds);
    product<pairs>({of.dk, tile_size}, {q + pairs_offset, tile_size / 2, 1}, {ds_transposed.units, tile_size}, sizes,
                   of.adds);
  } else {
    const ProductSizes sizes{key_rows, packing.cols, query_units};
    product_over_seen<pairs>({of.dv, packing.width}, p_transposed, {d_o + pairs_offset, packing.width}, sizes, of.adds,
                             mask, mask.queries);
    product_over_seen<pairs>({of.dk, packing.width}, ds_transposed, {q + pairs_offset, packing.width}, sizes, of.adds,
                             mask, mask.queries);
  }
  product_over_seen<pairs>({buffers.dq + place * packing.width, packing.width}, ds, {of.k_for_dq, packing.width},
                           {rows, packing.cols, packing.token_units(of.keys)}, adds_to_dq, mask, mask.keys);
}

// RETURNS a tile's sums as rows of packed_width, in memory of packed keys if they are not.
template <bool pairs>
const float* sums_by_row(const float* sums, const Packing<pairs>& packing, int64_t keys,
                         const AttentionBackwardBuffers& buffers) {
  if constexpr (pairs && tile_products) {
    float* const rows = reinterpret_cast<float*>(buffers.k);
    store_transposed(rows, packing.width, sums, buffers.scores, keys, packing.head_size);
    return rows;
  } else {
    return sums;
  }
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

// Stores the gradients of a tile of keys beside picked queries in the place of its packed rows.
template <typename T, bool pairs>
void store_picked_keys(Unit* packed, const float* sums, const GradientKeys& of, const Packing<pairs>& packing,
                       const AttentionBackwardBuffers& buffers) {
  Unit* const to = packed + (of.key.tile - buffers.query_tiles.first) * packing.tile;
  store_rows(reinterpret_cast<T*>(to), packing.template row_elements<T>(), sums_by_row(sums, packing, of.keys, buffers),
             packing.width, of.keys, packing.head_size, 1.0F);
}

// Adds a tile's sums to those of their tokens.
template <bool pairs>
void add_keys(float* totals, const float* sums, const KeyTiles<true>& tiles, const GradientKeys& of,
              const Packing<pairs>& packing, const AttentionBackwardBuffers& buffers) {
  const float* const rows = sums_by_row(sums, packing, of.keys, buffers);
  const PlacedTokens tokens(tiles, of.key.picked, of.key.first(), of.keys);
  for (int64_t row = 0; row < of.keys; ++row) {
    if (tokens.at[row] >= tiles.tokens) continue;
    float* const to = totals + tokens.at[row] * packing.width;
    for (int64_t col = 0; col < packing.head_size; ++col) to[col] += rows[row * packing.width + col];
  }
}

inline PlaceRange common(const PlaceRange& a, const PlaceRange& b) {
  return {a.first > b.first ? a.first : b.first, a.end < b.end ? a.end : b.end};
}

// RETURNS whether dq is zero before the first tile of keys, as that need not be seen by all queries.
inline bool adds_to_zero(const AttentionHead& head, const AttentionBackwardBuffers& buffers) {
  return buffers.dq_sums != nullptr || head.is_part;
}

// Computes the gradients of a tile of keys, and adds its share to dq.
template <typename T, bool pairs>
void backward_keys(const AttentionHead& head, const KeyTiles<true>& tiles, const KeyTile& key, const GroupSpan& group,
                   const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  const int64_t offset = buffers.grouped ? (key.tile - buffers.query_tiles.first) * packing.tile : 0;
  GradientKeys of{.key = key,
                  .keys = smaller(tile_size, tiles.num_keys(key.picked) - key.first()),
                  .k_for_dq = nullptr,
                  .dk = buffers.dk + offset,
                  .dv = buffers.dv + offset,
                  .adds = buffers.grouped && !group.first};
  const PlaceRange query_tiles = common(tiles.query_tiles(key), buffers.query_tiles);
  for (int tile = query_tiles.first; tile < query_tiles.end; ++tile) {
    const KeyRuns runs = tiles.runs(tile);
    if (!runs.contains(key)) continue;
    if (of.k_for_dq == nullptr) of.k_for_dq = pack_keys<T, pairs>(head, packing, key, of.keys, buffers);
    // In the last pass every query sees a key; the first of these begins its dq.
    const bool begins_dq = !adds_to_zero(head, buffers) && runs[0].tile == key.tile && runs[0].picked == key.picked;
    add_gradients<T, pairs>(head, tiles, tile, of, !begins_dq, buffers);
    of.adds = true;
  }
  if (head.is_part && !of.adds) {
    std::memset(of.dk, 0, packing.tile * 4);
    std::memset(of.dv, 0, packing.tile * 4);
  }
  if (buffers.dk_sums != nullptr) {
    if (of.k_for_dq == nullptr) return;
    add_keys(buffers.dk_sums, of.dk, tiles, of, packing, buffers);
    add_keys(buffers.dv_sums, of.dv, tiles, of, packing, buffers);
  } else if (group.last && buffers.picked_k != nullptr) {
    store_picked_keys<T>(buffers.picked_k, of.dk, of, packing, buffers);
    store_picked_keys<T>(buffers.picked_v, of.dv, of, packing, buffers);
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
    backward_keys<T, pairs>(head, tiles, {key, false}, group, buffers);
  if (!tiles.picked_keys) return;
  const PlaceRange picked = tiles.picked_queries ? buffers.query_tiles : PlaceRange{0, tiles.num_key_tiles(true)};
  for (int key = picked.first; key < picked.end; ++key)
    backward_keys<T, pairs>(head, tiles, {key, true}, group, buffers);
}

}  // namespace
}  // namespace gptrain::ops
