// Gradients of a tile of scores by AMX tiles. Included only by the kernels of attention.
//
// Scores are computed by key: their rows are keys and their columns queries. Then probabilities and gradients of scores
// are left factors of dv and dk as they are, and only those of dq are transposed.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/kernels/attention_gradients.h"

namespace gptrain::inline ops {
namespace {

// Keys of a strip: as many as the strips of masks and two tiles have.
constexpr int64_t strip_keys = 32;

// Statistics and masks of a tile's queries. Queries that do not exist have zero probabilities.
struct QueryColumns {
  alignas(64) float lse[tile_size], delta[tile_size];
  alignas(64) int front[tile_size],
      front_size[tile_size], back[tile_size], back_size[tile_size];  // keys that each sees

  explicit QueryColumns(const GradientTile& tile) {
    const int64_t count = tile.queries;
    for (int64_t i = 0; i < tile_size; ++i) {
      lse[i] = i < count ? tile.lse[i] : -minus_infinity;
      delta[i] = i < count ? tile.delta[i] : 0.0F;
    }
    if (tile.mask.whole) return;
    for (int64_t i = 0; i < tile_size; ++i) {
      front[i] = i < count ? tile.mask.front[i].first : 0;
      front_size[i] = i < count ? tile.mask.front[i].size() : 0;
    }
    for (int64_t i = 0; i < tile_size && tile.mask.has_back; ++i) {
      back[i] = i < count ? tile.mask.back[i].first : 0;
      back_size[i] = i < count ? tile.mask.back[i].size() : 0;
    }
  }
};

// to[key][query] = dropout's factors of a tile of scores.
inline void transposed_dropout_factors(float* to, const ScoreTile& tile) {
  alignas(64) float rows[lanes][tile_size];
  std::memset(rows, 0, sizeof(rows));
  for (int64_t first = 0; first < tile.queries; first += lanes) {
    for (int64_t i = 0; i < smaller(lanes, tile.queries - first); ++i) dropout_factors(rows[i], tile, first + i);
    transpose(reinterpret_cast<Unit*>(to + first), tile_size, reinterpret_cast<const Unit*>(rows[0]), tile_size, lanes,
              tile_size);
  }
}

// Products of one strip of keys with some queries: scores q k^T and gradients of probabilities d_o v^T, both
// [strip_keys][tile_size]. Results: p and ds by key as pairs of queries, [strip_keys][tile_size / 2], and ds as pairs
// of keys, [strip_keys / 2][tile_size].
struct StripBuffers {
  float *scores, *d_scores;
  const float* factors;  // dropout, [strip_keys][tile_size]
  Unit *p, *ds, *ds_of_pairs;

  StripBuffers(const AttentionBackwardBuffers& buffers, int64_t first_key)
      : scores(buffers.scores),
        d_scores(buffers.scores + strip_keys * tile_size),
        factors(buffers.d_scores + first_key * tile_size),
        p(buffers.p_pairs),
        ds(buffers.ds_pairs),
        ds_of_pairs(buffers.ds_pairs + strip_keys * tile_size / 2) {}
};

// Computes p and ds of a strip of keys and the queries of two vectors.
template <bool drops, bool masks>
void softmax_backward_strip(const StripBuffers& strip, int first_key, int64_t query, const QueryColumns& columns,
                            bool has_back, const ScoreFactors& score_factors) {
  Vec lse[2], delta[2];
  BitsVec front[2], front_size[2], back[2] = {}, back_size[2] = {};
  const auto load_bits = [](const int* from) { return reinterpret_cast<BitsVec>(load(from)); };
  for (int n = 0; n < 2; ++n) {
    const int64_t at = query + n * lanes;
    lse[n] = load(columns.lse + at);
    delta[n] = load(columns.delta + at);
    if constexpr (!masks) continue;
    front[n] = load_bits(columns.front + at);
    front_size[n] = load_bits(columns.front_size + at);
    if (!has_back) continue;
    back[n] = load_bits(columns.back + at);
    back_size[n] = load_bits(columns.back_size + at);
  }
  for (int64_t key = 0; key < strip_keys; key += 2) {
    KeyGradients of[2][2];
    for (int r = 0; r < 2; ++r) {
      for (int n = 0; n < 2; ++n) {
        const int64_t at = (key + r) * tile_size + query + n * lanes;
        Vec score = load(strip.scores + at);
        if constexpr (masks) {
          const auto place = static_cast<uint32_t>(first_key + key + r);
          const auto seen = (place - front[n] < front_size[n]) | (place - back[n] < back_size[n]);
          score = seen ? score : broadcast(minus_infinity);
        }
        of[r][n] = softmax_gradients(score, load(strip.d_scores + at), drops ? strip.factors + at : nullptr, lse[n],
                                     delta[n], score_factors);
      }
      const int64_t to = (key + r) * (tile_size / 2) + query / 2;
      store(strip.p + to, pair_neighbours(of[r][0].p, of[r][1].p));
      store(strip.ds + to, pair_neighbours(of[r][0].ds, of[r][1].ds));
    }
    for (int n = 0; n < 2; ++n)
      store(strip.ds_of_pairs + key / 2 * tile_size + query + n * lanes, pair_lanes(of[0][n].ds, of[1][n].ds));
  }
}

// Computes p and ds of a strip of keys and some queries, and ds_rows [queries][tile_size / 2], pairs of all keys.
inline void softmax_backward_strip(const StripBuffers& strip, const PlaceRange& queries, int first_key,
                                   const QueryColumns& columns, const GradientTile& tile, Unit* ds_rows) {
  const ScoreFactors factors(tile.head);
  const bool drops = tile.head.drop_threshold != 0, has_back = tile.mask.has_back;
  for (int query = queries.first; query < queries.end; query += 2 * lanes) {
    if (tile.head.softcap != 0.0F) {
      for (int64_t i = 0; i < strip_keys * 2; ++i) {
        float* const at = strip.scores + i / 2 * tile_size + query + i % 2 * lanes;
        store(at, capped(load(at), tile.head));
      }
    }
    const auto run = [&](auto drop) {
      constexpr bool with_drops = decltype(drop)::value;
      tile.mask.whole ? softmax_backward_strip<with_drops, false>(strip, first_key, query, columns, has_back, factors)
                      : softmax_backward_strip<with_drops, true>(strip, first_key, query, columns, has_back, factors);
    };
    drops ? run(std::true_type()) : run(std::false_type());
  }
  transpose(ds_rows + queries.first * (tile_size / 2) + first_key / 2, tile_size / 2, strip.ds_of_pairs + queries.first,
            tile_size, strip_keys / 2, queries.size());
}

// Adds the products of one tile of scores to dk and dv, and sets buffers.ds_rows.
inline void add_key_gradients_by_key(const GradientTile& tile, const GradientKeys& of, const Packing<true>& packing,
                                     const Unit* q, const Unit* d_o, const AttentionBackwardBuffers& buffers) {
  const int64_t pairs_offset = packing.tile / 2, key_rows = round_up(of.keys, product_rows);
  const QueryColumns columns(tile);
  if (tile.head.drop_threshold != 0) transposed_dropout_factors(buffers.d_scores, tile);
  const int all_queries = static_cast<int>(round_up(tile.queries, Packing<true>::strip_size));
  for (int first = 0; first < key_rows; first += strip_keys) {
    PlaceRange queries = tile.mask.in_strips ? tile.mask.queries[first / strip_keys] : PlaceRange{0, all_queries};
    if (queries.end > all_queries) queries.end = all_queries;
    if (queries.first > queries.end) queries.first = queries.end;
    const StripBuffers strip(buffers, first);
    const int64_t left = first * packing.row_units;
    const ProductSizes scores{strip_keys, queries.size(), packing.depth};
    product<true>({strip.scores + queries.first, tile_size}, {of.packed.k + left, packing.row_units, 1},
                  {q + queries.first, tile_size}, scores, false);
    product<true>({strip.d_scores + queries.first, tile_size}, {of.packed.v + left, packing.row_units, 1},
                  {d_o + queries.first, tile_size}, scores, false);
    softmax_backward_strip(strip, queries, first, columns, tile, buffers.ds_rows);
    const ProductSizes sizes{smaller(strip_keys, key_rows - first), packing.cols, queries.size() / 2};
    const int64_t from = queries.first / 2, sums = first * packing.width;
    const int64_t right = pairs_offset + from * packing.width;
    product<true>({of.dv + sums, packing.width}, {strip.p + from, tile_size / 2, 1}, {d_o + right, packing.width},
                  sizes, of.adds);
    product<true>({of.dk + sums, packing.width}, {strip.ds + from, tile_size / 2, 1}, {q + right, packing.width}, sizes,
                  of.adds);
  }
}

}  // namespace
}  // namespace gptrain::ops
