// Shared by the kernels of attention: masks, dropout, and packing of a head's tiles. Included only by
// matrix_kernels.cpp, which is compiled once per instruction set.
#pragma once

#include "ops/cpu/kernels/philox_lanes.h"
#include "ops/cpu/kernels/tile.h"

namespace gptrain {
namespace {

constexpr float log2_e = 1.44269504F;
constexpr float minus_infinity = -__builtin_inff();

inline float largest_lane(Vec value) {
  IntVec other;
  for (int half = lanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < lanes; ++i) other[i] = i ^ half;
    const Vec exchanged = __builtin_shuffle(value, other);
    value = exchanged > value ? exchanged : value;
  }
  return value[0];
}

// A tile of queries, by their places in the order of a pass, and a tile of keys.
struct ScoreTile {
  const AttentionHead& head;
  const KeyTiles<true>& tiles;  // of the pass
  int query_tile;
  int64_t queries;
  KeyTile key;

  int64_t first_query() const { return int64_t{query_tile} * tile_size; }
};

// factors[c] = 0 if the probability of the query in a row and the tile's key c is dropped, else keep_scale.
inline void dropout_factors(float* factors, const ScoreTile& tile, int64_t row) {
  const AttentionHead& head = tile.head;
  const int query = tile.tiles.query_token(static_cast<int>(tile.first_query() + row));
  const DropoutCounters counters{head.key0,       head.key1,        static_cast<uint32_t>(query),
                                 head.sample_low, head.sample_high, head.drop_threshold,
                                 head.keep_scale};
  const int first_key = tile.key.first();
  if (!tile.key.picked) {
    for (int first = 0; first < tile_size / 4; first += philox_counters)
      dropout_factors(factors + 4 * first, counters, static_cast<uint32_t>(first_key / 4 + first));
    return;
  }
  // A counter has words for four neighbouring tokens. Picked keys need not be neighbours, so each has a counter.
  alignas(64) float words[4 * philox_counters];
  for (int first = 0; first < tile_size; first += philox_counters) {
    int tokens[philox_counters];
    for (int i = 0; i < philox_counters; ++i) tokens[i] = tile.tiles.picked_token(first_key + first + i);
    dropout_factors(words, counters, CounterLanes([&](int i) { return static_cast<uint32_t>(tokens[i] / 4); }));
    for (int i = 0; i < philox_counters; ++i) factors[first + i] = words[4 * i + tokens[i] % 4];
  }
}

inline void hide(float* scores, int64_t first, int64_t end) {
  for (int64_t col = first > 0 ? first : 0; col < smaller(end, tile_size); ++col) scores[col] = minus_infinity;
}

// Sets scores of keys that a query may not see, or that do not exist, to minus infinity.
inline void mask_scores(float* scores, const ScoreTile& tile) {
  if (tile.tiles.whole(tile.query_tile, tile.key)) return;
  const int first_key = tile.key.first();
  for (int64_t row = 0; row < tile.queries; ++row) {
    float* const values = scores + row * tile_size;
    const int query = tile.tiles.query_token(static_cast<int>(tile.first_query() + row));
    if (query >= tile.tiles.tokens) {
      hide(values, 0, tile_size);
      continue;
    }
    const SeenKeys seen = tile.tiles.seen(query);
    const PlaceRange front = tile.key.picked ? seen.picked : seen.global;
    const PlaceRange back = tile.key.picked ? seen.picked : seen.local;
    hide(values, 0, front.first - first_key);
    hide(values, front.end - first_key, back.first - first_key);
    hide(values, back.end - first_key, tile_size);
  }
}

// Rows of an operand.
template <typename T>
struct PlacedRows {
  const T* data;
  int64_t stride;
};

// RETURNS the rows at `rows` places: in the operand, or for places of the picked order copied to `gathered`. Rows of
// empty places are zero.
template <typename T>
PlacedRows<T> rows_at(const AttentionHead& head, PlacedRows<T> operand, bool picked, int64_t place, int64_t rows,
                      Unit* gathered) {
  if (!picked) return {operand.data + place * operand.stride, operand.stride};
  T* const to = reinterpret_cast<T*>(gathered);
  const auto bytes = static_cast<size_t>(head.head_size) * sizeof(T);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = head.tiles.picked_token(static_cast<int>(place + row));
    if (token < head.tokens) {
      std::memcpy(to + row * head.head_size, operand.data + token * operand.stride, bytes);
    } else {
      std::memset(to + row * head.head_size, 0, bytes);
    }
  }
  return {to, head.head_size};
}

template <typename T>
PlacedRows<T> rows_of(const void* operand, int64_t stride) {
  return {static_cast<const T*>(operand), stride};
}

// The shape of packed tiles.
template <bool pairs>
struct Packing {
  explicit Packing(int64_t head_size_)
      : head_size(head_size_),
        width(packed_width(head_size_)),
        cols(round_up(head_size_, 16)),
        row_units(pairs ? width / 2 : width),
        depth(pairs ? (head_size_ + 1) / 2 : head_size_),
        tile(tile_size * width) {}
  // RETURNS the units of a sum over `count` tokens.
  static int64_t token_units(int64_t count) { return pairs ? (count + 1) / 2 : count; }

  int64_t head_size;
  int64_t width;      // units of a row of a tile that is summed over its rows
  int64_t cols;       // columns that products write
  int64_t row_units;  // units of a row of a tile that is summed over its columns
  int64_t depth;      // units of a row that hold elements
  int64_t tile;       // units of a tile
};

// Packs rows for sums over the columns and, behind them, if their units differ, rows for sums over the rows. RETURNS
// the latter.
template <typename T, bool pairs>
const Unit* pack_both(Unit* out, const Packing<pairs>& packing, const T* from, int64_t from_stride, int64_t rows) {
  pack_rows<pairs>(out, packing.row_units, from, from_stride, rows, packing.head_size);
  if constexpr (pairs) {
    Unit* const second = out + packing.tile / 2;
    pack_row_pairs(second, packing.width, from, from_stride, rows, packing.head_size);
    return second;
  } else {
    return out;
  }
}

template <typename T, bool pairs>
void pack_transposed(Unit* out, Unit* rows_buffer, const Packing<pairs>& packing, const T* from, int64_t from_stride,
                     int64_t rows) {
  pack_rows<pairs>(rows_buffer, packing.row_units, from, from_stride, rows, packing.head_size);
  transpose(out, tile_size, rows_buffer, packing.row_units, tile_size, round_up(packing.depth, 16));
}

// Packs rows for sums over the columns and, behind them, the columns as rows of pairs, [width][tile_size / 2], the left
// factor of AMX tiles in a sum over the rows. `buffer` holds a tile.
template <bool pairs>
void pack_for_tiles(Unit* out, Unit* buffer, const Packing<pairs>& packing, const bf16* from, int64_t from_stride,
                    int64_t rows) {
  pack_rows<pairs>(out, packing.row_units, from, from_stride, rows, packing.head_size);
  pack_row_pairs(buffer, packing.width, from, from_stride, rows, packing.head_size);
  transpose(out + packing.tile / 2, tile_size / 2, buffer, packing.width, tile_size / 2, packing.width);
}

}  // namespace
}  // namespace gptrain
