// Attention of some query tiles of one head, forward. Included only by matrix_kernels.cpp.
#pragma once

#include "ops/cpu/kernels/attention_kernels.h"

namespace gptrain::inline ops {
namespace {

// RETURNS the number subtracted from a row's scores: 0 while the row has seen no key.
inline float softmax_base(float row_max) { return row_max == minus_infinity ? 0.0F : row_max; }

// State of the online softmax of a tile of queries.
struct RunningRows {
  float *row_max, *row_sum, *o;
  int64_t width, cols;  // of o
};

template <bool pairs>
RunningRows running_rows(const AttentionForwardBuffers& buffers, int64_t tile, const Packing<pairs>& packing) {
  return {.row_max = buffers.row_max + tile * tile_size,
          .row_sum = buffers.row_sum + tile * tile_size * 16,
          .o = buffers.o + tile * packing.tile,
          .width = packing.width,
          .cols = packing.cols};
}

// shrink[i] = the factor of the sum and output of the i-th row, whose running maximum it updates.
template <int width>
void raise_maxima(float* shrink, const float* scores, const RunningRows& running, const ScoreTile& tile,
                  const ScoreRows<width>& rows) {
  const float scale = factor_after_cap(tile.head);
  const Vec least = broadcast(minus_infinity);
  for (int64_t i = 0; i < rows.count; i += lanes) {
    Vec maxima[lanes];  // by row, then by column
    for (int64_t j = 0; j < lanes; ++j) {
      maxima[j] = least;
      if (i + j >= rows.count) continue;
      const float* const values = scores + (rows.first + i + j) * tile_size + rows.keys.first;
      for (int64_t col = 0; col < rows.cols(); col += lanes) {
        const Vec some = load(values + col);
        maxima[j] = some > maxima[j] ? some : maxima[j];
      }
    }
    transpose_in_registers(maxima);
    for (int j = 1; j < lanes; ++j) maxima[0] = maxima[j] > maxima[0] ? maxima[j] : maxima[0];
    const Vec largest = maxima[0] * scale;
    float* const row_max = running.row_max + rows.first + i;
    const Vec before = load(row_max), after = largest > before ? largest : before;
    store(row_max, after);
    store(shrink + i, exp2((before - (after == least ? Vec{} : after)) * log2_e));
    if (tile.head.largest == nullptr) continue;
    const float of_rows = largest_lane(largest > least ? largest : least);
    if (of_rows > *tile.head.largest) *tile.head.largest = of_rows;
  }
}

// Turns scores into unnormalised probabilities exp(score - row_max) after dropout, in place or, for pairs, in
// `probabilities`. Updates the running maximum of each row and rescales the row's sum to it and, unless it begins, the
// row's output. Calls ahead() every few rows.
template <bool pairs, bool drops, int width, typename F>
void online_softmax(float* scores, Unit* probabilities, const RunningRows& running, bool begins, const ScoreTile& tile,
                    const ScoreRows<width>& rows, F& ahead) {
  const float scale = factor_after_cap(tile.head);
  constexpr int64_t rows_per_call = 4;
  alignas(64) float shrink[tile_size];
  raise_maxima(shrink, scores, running, tile, rows);
  const int64_t first_key = rows.keys.first;
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.first + i;
    if (i % rows_per_call == 0) ahead();
    float* const values = scores + row * tile_size + first_key;
    Unit* const pairs_of_row = probabilities + row * (tile_size / 2) + rows.keys.first / 2;
    const Vec max = broadcast(softmax_base(running.row_max[row]));
    Vec sum = Vec{};
    alignas(64) float factors[tile_size];
    if constexpr (drops) dropout_factors(factors, tile, row);
    const auto kept = [&](int64_t col) {
      const Vec p = exp2((load(values + col) * scale - max) * log2_e);
      sum += p;
      if constexpr (drops) return p * load(factors + first_key + col);
      return p;
    };
    for (int64_t col = 0; col < rows.cols(); col += 2 * lanes) {
      const Vec first = kept(col), second = kept(col + lanes);
      if constexpr (pairs) {
        store(pairs_of_row + col / 2, pair_neighbours(first, second));
      } else {
        store(values + col, first);
        store(values + col + lanes, second);
      }
    }
    float* const row_sum = running.row_sum + row * 16;
    store(row_sum, load(row_sum) * shrink[i] + sum);
    if (begins || shrink[i] == 1.0F) continue;
    float* const o = running.o + row * running.width;
    for (int64_t col = 0; col < running.cols; col += lanes) store(o + col, load(o + col) * shrink[i]);
  }
}

// Sets the state of a tile's rows: to that of an earlier pass, or to nothing seen but the head's sink. Then the first
// tile of keys overwrites the output.
inline void begin_rows(const RunningRows& rows, const CarriedSoftmax& carried, bool continues, int64_t first_query,
                       int64_t queries, float sink) {
  std::memset(rows.row_sum, 0, tile_size * 16 * 4);
  for (int64_t row = 0; row < tile_size; ++row) {
    rows.row_max[row] = sink;
    if (sink != minus_infinity) rows.row_sum[row * 16] = 1;
  }
  if (!continues) return;
  std::memcpy(rows.o, carried.o + first_query * rows.width, queries * rows.width * 4);
  for (int64_t row = 0; row < queries; ++row) {
    rows.row_max[row] = carried.row_max[first_query + row];
    rows.row_sum[row * 16] = carried.row_sum[first_query + row];
  }
}

// sums[row] = the sum over the lanes of each row of a tile.
inline void sums_of_lanes(float* sums, const float* row_sums) {
  alignas(64) Unit by_lane[16 * tile_size];
  transpose(by_lane, tile_size, reinterpret_cast<const Unit*>(row_sums), 16, tile_size, 16);
  for (int64_t row = 0; row < tile_size; row += lanes) {
    Vec sum = Vec{};
    for (int64_t i = 0; i < lanes; ++i) sum += load(by_lane + i * tile_size + row);
    store(sums + row, sum);
  }
}

// Stores the state of a tile's rows for the next pass.
inline void carry_rows(const RunningRows& rows, const ScoreTile& tile, const CarriedSoftmax& next) {
  const PlacedTokens tokens(tile.tiles, tile.tiles.picked_queries, tile.first_query(), tile.queries);
  alignas(64) float sums[tile_size];
  sums_of_lanes(sums, rows.row_sum);
  for (int64_t row = 0; row < tile.queries; ++row) {
    const int64_t token = tokens.at[row];
    if (token >= tile.head.tokens) continue;
    stream_row(next.o + token * rows.width, rows.o + row * rows.width, rows.width, 1.0F);
    next.row_max[token] = rows.row_max[row];
    next.row_sum[token] = sums[row];
  }
}

// Stores the results of a tile's rows. `streams`: past the caches.
template <bool streams, typename T>
void finish_rows(const RunningRows& rows, const ScoreTile& tile, T* o) {
  const PlacedTokens tokens(tile.tiles, tile.tiles.picked_queries, tile.first_query(), tile.queries);
  alignas(64) float sums[tile_size], logs[tile_size];
  sums_of_lanes(sums, rows.row_sum);
  for (int64_t row = 0; streams && row < tile_size; row += lanes) store(logs + row, log(load(sums + row)));
  const auto log_of_sum = [&](int64_t row) {
    const bool in_range = sums[row] >= 0x1p-126F && sums[row] <= 0x1p+126F;
    return streams && in_range ? logs[row] : __builtin_logf(sums[row]);
  };
  for (int64_t row = 0; row < tile.queries; ++row) {
    const int64_t token = tokens.at[row];
    if (token >= tile.head.tokens) continue;
    const float sum = sums[row];
    const bool saw_key = !tile.head.is_part || sum > 0.0F;
    const float scale = saw_key ? 1.0F / sum : 0.0F;
    if constexpr (streams) {
      stream_row(o + token * tile.head.o_stride, rows.o + row * rows.width, tile.head.head_size, scale);
    } else {
      store_rows(o + token * tile.head.o_stride, 0, rows.o + row * rows.width, 0, 1, tile.head.head_size, scale);
    }
    tile.head.lse[token] = saw_key ? rows.row_max[row] + log_of_sum(row) : minus_infinity;
  }
}

// Query tiles that share packed keys, with the tiles of keys that each sees.
struct QueryGroup {
  KeyRuns runs[max_query_tiles];
  KeyRuns all;  // every tile that one of the group sees, and perhaps some between

  QueryGroup(const KeyTiles<true>& tiles, int64_t first_tile, int64_t count) {
    for (int64_t tile = 0; tile < count; ++tile) {
      runs[tile] = tiles.runs(static_cast<int>(first_tile + tile));
      all.global = united(all.global, runs[tile].global);
      all.local = united(all.local, runs[tile].local);
      all.picked = united(all.picked, runs[tile].picked);
    }
    if (all.global.end > all.local.first && all.local.size() > 0) all.local.first = all.global.end;
  }
  bool sees(const KeyTile& key, int64_t count) const {
    for (int64_t tile = 0; tile < count; ++tile) {
      if (runs[tile].contains(key)) return true;
    }
    return false;
  }
};

// The tiles that a group is computed from, packed by rows: queries from the first of the group on and, if queries are
// picked, all picked keys that they see, from tile `first_key` on (else nullptr).
struct PackedGroup {
  Unit* q;
  const Unit *k, *v;
  int first_key;
  bool continues;  // running outputs are set
};

// Packs a tile of keys and values. RETURNS the values.
template <typename T, bool pairs>
const Unit* pack_keys(const AttentionHead& head, const Packing<pairs>& packing, const KeyTile& key, int64_t keys,
                      const PackedGroup& packed, const AttentionForwardBuffers& buffers) {
  if (key.picked && packed.k != nullptr) {
    const int64_t offset = (key.tile - packed.first_key) * packing.tile;
    pack_transposed(buffers.k, packing, packed.k + offset);
    if constexpr (!pairs) return packed.v + offset;
    pack_pairs_of(buffers.v, packing, packed.v + offset);
    return buffers.v;
  }
  const OperandRows<T, 2> operands{rows_of<T>(head.k, head.k_stride), rows_of<T>(head.v, head.v_stride)};
  const auto [k, v] = rows_at(head, operands, key.picked, key.first(), keys, buffers.gathered);
  pack_columns<T>(buffers.k, buffers.k_rows, packing, k, keys);
  if constexpr (pairs) {
    pack_row_pairs(buffers.v, packing.width, v.data, v.stride, keys, head.head_size);
  } else {
    pack_rows<false>(buffers.v, packing.width, v.data, v.stride, keys, head.head_size);
  }
  return buffers.v;
}

// Computes query tiles [first_tile, first_tile + count), whose running state is set. `ahead`: see LinesAhead.
// REQUIRES: count <= max_query_tiles.
template <typename T, bool pairs, typename F>
void forward_group(const AttentionHead& head, int64_t first_tile, int64_t count, const PackedGroup& packed,
                   const AttentionForwardBuffers& buffers, F ahead) {
  const Packing<pairs> packing(head.head_size);
  const KeyTiles<true>& tiles = head.tiles;
  const QueryGroup group(tiles, first_tile, count);
  bool begun[max_query_tiles];
  for (bool& tile : begun) tile = packed.continues;
  for (int i = 0; i < group.all.size(); ++i) {
    const KeyTile key = group.all[i];
    if (!group.sees(key, count)) continue;
    const int64_t keys = smaller(tile_size, tiles.num_keys(key.picked) - key.first());
    const Unit* const v = pack_keys<T, pairs>(head, packing, key, keys, packed, buffers);
    for (int64_t tile = 0; tile < count; ++tile) {
      if (!group.runs[tile].contains(key)) continue;
      const ScoreTile at = query_tile(head, first_tile + tile, key);
      const int64_t rows = round_up(at.queries, product_rows);
      float* const scores = buffers.scores;
      const TileMask mask(at, packing.strip_size);
      product_of_seen<pairs>(scores, {packed.q + tile * packing.tile, packing.row_units, 1}, buffers.k, rows,
                             packing.depth, mask);
      cap_scores(scores, at.queries, head, mask);
      mask_scores(scores, at.queries, mask);
      const RunningRows running = running_rows(buffers, tile, packing);
      mask.each_width<2 * lanes>(at.queries, [&](const auto& seen) {
        head.drop_threshold != 0
            ? online_softmax<pairs, true>(scores, buffers.probabilities, running, !begun[tile], at, seen, ahead)
            : online_softmax<pairs, false>(scores, buffers.probabilities, running, !begun[tile], at, seen, ahead);
      });
      const Unit* const probabilities = pairs ? buffers.probabilities : reinterpret_cast<const Unit*>(scores);
      product_over_seen<pairs>({running.o, packing.width}, {probabilities, pairs ? tile_size / 2 : tile_size, 1},
                               {v, packing.width}, {rows, packing.cols, packing.token_units(keys)}, begun[tile], mask,
                               mask.keys);
      begun[tile] = true;
    }
  }
  for (int64_t tile = 0; tile < count; ++tile) {
    if (!begun[tile]) std::memset(running_rows(buffers, tile, packing).o, 0, packing.tile * 4);
  }
}

// Computes query tiles of the natural order.
template <typename T, bool pairs>
void forward_tiles(const AttentionHead& head, int64_t first_tile, int64_t count,
                   const AttentionForwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  const bool continues = buffers.carried.o != nullptr;
  for (int64_t tile = 0; tile < count; ++tile) {
    const ScoreTile at = query_tile(head, first_tile + tile, {});
    pack_rows<pairs>(buffers.q + tile * packing.tile, packing.row_units,
                     static_cast<const T*>(head.q) + at.first_query() * head.q_stride, head.q_stride, at.queries,
                     head.head_size);
    begin_rows(running_rows(buffers, tile, packing), buffers.carried, continues, at.first_query(), at.queries,
               head.sink);
  }
  const PackedGroup packed{buffers.q, nullptr, nullptr, 0, continues};
  if (continues) {
    LinesAhead ahead;
    const int64_t next = (first_tile + count) * tile_size, tokens = smaller(count * tile_size, head.tokens - next);
    ahead.add(buffers.carried.o + next * packing.width, tokens * packing.width * 4);
    forward_group<T, pairs>(head, first_tile, count, packed, buffers, ahead);
  } else {
    forward_group<T, pairs>(head, first_tile, count, packed, buffers, NothingAhead());
  }
  for (int64_t tile = 0; tile < count; ++tile) {
    const ScoreTile at = query_tile(head, first_tile + tile, {});
    const auto finish = [&](auto* o) { finish_rows<false>(running_rows(buffers, tile, packing), at, o); };
    head.is_part ? finish(static_cast<float*>(head.o)) : finish(static_cast<T*>(head.o));
  }
}

}  // namespace
}  // namespace gptrain::ops
