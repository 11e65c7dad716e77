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
    std::memset(units + filled, 0, static_cast<size_t>((tile_size * tile_size / 2 - filled) * 4));
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

// Prepares, for the sweep over key tiles of a pass, packed q and d_o of all queries, and delta = d_o . o. The
// log-sum-exp of an empty place is infinite, which makes its probabilities zero.
template <typename T, bool pairs>
void prepare_queries(const AttentionHead& head, const KeyTiles<true>& tiles, const Packing<pairs>& packing,
                     const AttentionBackwardBuffers& buffers) {
  for (int tile = 0; tile < tiles.num_query_tiles(); ++tile) {
    const int64_t query = int64_t{tile} * tile_size;
    const int64_t rows = smaller(tile_size, tiles.num_queries() - query);
    const OperandRows<T, 3> operands{rows_of<T>(head.q, head.q_stride), rows_of<T>(head.d_o, head.d_o_stride),
                                     rows_of<T>(head.o, head.o_stride)};
    const auto [q, d_o, o] = rows_at(head, operands, tiles.picked_queries, query, rows, buffers.gathered);
    const auto pack = [&](Unit* out, const PlacedRows<T>& from) {
      if constexpr (pairs && tile_products) {
        pack_for_tiles(out + tile * packing.tile, buffers.k_rows, packing, from.data, from.stride, rows);
      } else {
        pack_both<T, pairs>(out + tile * packing.tile, packing, from.data, from.stride, rows);
      }
    };
    pack(buffers.q, q);
    pack(buffers.d_o, d_o);
    const PlacedTokens tokens(tiles, tiles.picked_queries, query, rows);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t token = tokens.at[row];
      const bool empty = token >= head.tokens;
      if (tiles.picked_queries) buffers.lse[query + row] = empty ? -minus_infinity : head.lse[token];
      buffers.delta[query + row] =
          empty ? 0.0F : product_of_rows(o.data + row * o.stride, d_o.data + row * d_o.stride, head.head_size);
    }
  }
}

// Packs the keys and values of a tile. RETURNS k's rows for dq. v first: its rows are not needed after transposing.
template <typename T, bool pairs>
const Unit* pack_keys(const AttentionHead& head, const Packing<pairs>& packing, const KeyTile& key, int64_t keys,
                      const AttentionBackwardBuffers& buffers) {
  const OperandRows<T, 2> operands{rows_of<T>(head.k, head.k_stride), rows_of<T>(head.v, head.v_stride)};
  const auto [k, v] = rows_at(head, operands, key.picked, key.first(), keys, buffers.gathered);
  pack_transposed<T, pairs>(buffers.v, buffers.k_rows, packing, v.data, v.stride, keys);
  const Unit* const k_for_dq = pack_both<T, pairs>(buffers.k_rows, packing, k.data, k.stride, keys);
  transpose(buffers.k, tile_size, buffers.k_rows, packing.row_units, tile_size, round_up(packing.depth, 16));
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
  const int64_t query = int64_t{query_tile} * tile_size;
  const int64_t queries = smaller(tile_size, tiles.num_queries() - query);
  const int64_t rows = round_up(queries, product_rows), key_rows = round_up(of.keys, product_rows);
  const Unit* const q = buffers.q + query_tile * packing.tile;
  const Unit* const d_o = buffers.d_o + query_tile * packing.tile;
  float* const scores = buffers.scores;
  float* const d_scores = buffers.d_scores;
  const float* const lse = tiles.picked_queries ? buffers.lse : head.lse;
  const ScoreTile score_tile{head, tiles, query_tile, queries, of.key};
  const TileMask mask(score_tile, packing.skips_hidden);
  const GradientTile at{score_tile, lse + query, buffers.delta + query, mask};
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
  product_over_seen<pairs>({buffers.dq + query * packing.width, packing.width}, ds, {of.k_for_dq, packing.width},
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

// Stores the gradients of a tile of keys.
template <typename T, bool pairs>
void store_keys(const PlacedRows<T>& to, const float* sums, const KeyTiles<true>& tiles, const GradientKeys& of,
                const Packing<pairs>& packing, const AttentionBackwardBuffers& buffers) {
  T* const result = const_cast<T*>(to.data);
  if (of.key.picked) {
    const float* const rows = sums_by_row(sums, packing, of.keys, buffers);
    const PlacedTokens tokens(tiles, true, of.key.first(), of.keys);
    for (int64_t row = 0; row < of.keys; ++row) {
      if (tokens.at[row] >= tiles.tokens) continue;
      store_rows(result + tokens.at[row] * to.stride, 0, rows + row * packing.width, 0, 1, packing.head_size, 1.0F);
    }
    return;
  }
  T* const rows = result + of.key.first() * to.stride;
  if constexpr (pairs && tile_products) {
    store_transposed(rows, to.stride, sums, buffers.scores, of.keys, packing.head_size);
  } else {
    store_rows(rows, to.stride, sums, packing.width, of.keys, packing.head_size, 1.0F);
  }
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

// The place of a head among those that share keys.
struct GroupSpan {
  bool first, last;
};

// RETURNS whether dq is zero before the first tile of keys, as that need not be seen by all queries.
inline bool adds_to_zero(const AttentionHead& head, const AttentionBackwardBuffers& buffers) {
  return buffers.dq_sums != nullptr || head.is_part;
}

// Computes the gradients of a tile of keys, and adds its share to dq.
template <typename T, bool pairs>
void backward_keys(const AttentionHead& head, const KeyTiles<true>& tiles, const KeyTile& key, const GroupSpan& group,
                   const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  const int64_t offset = buffers.grouped ? key.tile * packing.tile : 0;
  GradientKeys of{.key = key,
                  .keys = smaller(tile_size, tiles.num_keys(key.picked) - key.first()),
                  .k_for_dq = nullptr,
                  .dk = buffers.dk + offset,
                  .dv = buffers.dv + offset,
                  .adds = buffers.grouped && !group.first};
  const PlaceRange query_tiles = tiles.query_tiles(key);
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
    std::memset(of.dk, 0, static_cast<size_t>(packing.tile * 4));
    std::memset(of.dv, 0, static_cast<size_t>(packing.tile * 4));
  }
  if (buffers.dk_sums != nullptr) {
    if (of.k_for_dq == nullptr) return;
    add_keys(buffers.dk_sums, of.dk, tiles, of, packing, buffers);
    add_keys(buffers.dv_sums, of.dv, tiles, of, packing, buffers);
  } else if (group.last) {
    const auto store = [&](auto element) {
      using Element = decltype(element);
      store_keys(rows_of<Element>(head.dk, head.dk_stride), of.dk, tiles, of, packing, buffers);
      store_keys(rows_of<Element>(head.dv, head.dv_stride), of.dv, tiles, of, packing, buffers);
    };
    head.is_part ? store(float()) : store(T());
  }
}

// Stores the dq of a pass, or keeps it for the next.
template <typename T>
void finish_queries(const AttentionHead& head, const KeyTiles<true>& tiles, int64_t width,
                    const AttentionBackwardBuffers& buffers) {
  T* const dq = static_cast<T*>(head.dq);
  if (!tiles.picked_queries) {
    for (int64_t i = 0; buffers.dq_sums != nullptr && i < head.tokens * width; ++i) buffers.dq[i] += buffers.dq_sums[i];
    store_rows(dq, head.dq_stride, buffers.dq, width, head.tokens, head.head_size, 1.0F);
    return;
  }
  for (int place = 0; place < tiles.num_queries(); ++place) {
    const int64_t token = tiles.query_token(place);
    if (token >= head.tokens) continue;
    const float* const row = buffers.dq + place * width;
    if (buffers.dq_sums != nullptr) {
      std::memcpy(buffers.dq_sums + token * width, row, static_cast<size_t>(width * 4));
    } else {
      store_rows(dq + token * head.dq_stride, 0, row, 0, 1, head.head_size, 1.0F);
    }
  }
}

template <typename T, bool pairs>
void backward_head(const AttentionHead& head, const GroupSpan& group, const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  const auto sum_bytes = static_cast<size_t>(head.tokens * packing.width * 4);
  if (buffers.dk_sums != nullptr && group.first) {
    std::memset(buffers.dk_sums, 0, sum_bytes);
    std::memset(buffers.dv_sums, 0, sum_bytes);
  }
  if (buffers.dq_sums != nullptr) std::memset(buffers.dq_sums, 0, sum_bytes);
  for (int pass = 0; pass < head.tiles.num_passes(); ++pass) {
    const KeyTiles<true> tiles = head.tiles.pass(pass);
    prepare_queries<T, pairs>(head, tiles, packing, buffers);
    if (adds_to_zero(head, buffers))
      std::memset(buffers.dq, 0, static_cast<size_t>(tiles.num_query_tiles() * packing.tile * 4));
    for (const bool picked : {false, true}) {
      if (!(picked ? tiles.picked_keys : tiles.natural_keys)) continue;
      for (int key = 0; key < tiles.num_key_tiles(picked); ++key)
        backward_keys<T, pairs>(head, tiles, {key, picked}, group, buffers);
    }
    head.is_part ? finish_queries<float>(head, tiles, packing.width, buffers)
                 : finish_queries<T>(head, tiles, packing.width, buffers);
  }
  if (buffers.dk_sums == nullptr || !group.last) return;
  const auto store_sums = [&](void* to, int64_t stride, const float* from) {
    store_rows(static_cast<T*>(to), stride, from, packing.width, head.tokens, head.head_size, 1.0F);
  };
  store_sums(head.dk, head.dk_stride, buffers.dk_sums);
  store_sums(head.dv, head.dv_stride, buffers.dv_sums);
}

}  // namespace
}  // namespace gptrain::ops
