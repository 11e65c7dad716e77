// Shared by the kernels of attention: masks, dropout, and packing of a head's tiles. Included only by
// matrix_kernels.cpp, which is compiled once per instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ops/cpu/kernels/attention_packing.h"
#include "ops/cpu/kernels/philox_lanes.h"
#include "ops/cpu/kernels/tile.h"

namespace gptrain::inline ops {
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

// The tokens at some places of an order.
struct PlacedTokens {
  int64_t count;
  int end;  // a token of an empty place is not less
  int at[tile_size];

  PlacedTokens(const KeyTiles<true>& tiles, bool picked, int64_t place, int64_t count_)
      : count(count_), end(tiles.tokens) {
    if (!picked) {
      for (int64_t i = 0; i < count; ++i) at[i] = static_cast<int>(place + i);
      return;
    }
    PickedPlace next(tiles, static_cast<int>(place));
    for (int64_t i = 0; i < count; ++i, next.advance()) at[i] = next.token();
  }
};

// A tile of queries, by their places in the order of a pass, and a tile of keys.
struct ScoreTile {
  const AttentionHead& head;
  const KeyTiles<true>& tiles;  // tiles of the pass
  int query_tile;
  int64_t queries;
  KeyTile key;

  int64_t first_query() const { return int64_t{query_tile} * tile_size; }
};

// RETURNS a tile of queries of the head's pass with a tile of keys.
inline ScoreTile query_tile(const AttentionHead& head, int64_t tile, const KeyTile& key) {
  return {head, head.tiles, static_cast<int>(tile), smaller(tile_size, head.tiles.num_queries() - tile * tile_size),
          key};
}

// factors[c] = 0 if the probability of the query in a row and the tile's key c is dropped, else keep_scale.
inline void dropout_factors(float* factors, const ScoreTile& tile, int64_t row) {
  const AttentionHead& head = tile.head;
  const int query = tile.tiles.query_token(static_cast<int>(tile.first_query() + row));
  const DropoutCounters counters{head.key0,       head.key1,        static_cast<uint32_t>(query),
                                 head.sample_low, head.sample_high, head.drop_threshold,
                                 head.keep_scale};
  const int first_key = tile.key.first();
  if (!tile.key.picked) {
    const int token = tile.tiles.key_token(first_key, false);
    const auto draw = [&](float* to, int count) {
      for (int first = 0; first < count / 4; first += philox_counters)
        dropout_factors(to + 4 * first, counters, static_cast<uint32_t>(token / 4 + first));
    };
    if (token % 4 == 0) return draw(factors, tile_size);
    alignas(64) float from_counter[tile_size + 4 * philox_counters];  // begins with the first token's counter
    draw(from_counter, tile_size + 4 * philox_counters);
    std::memcpy(factors, from_counter + token % 4, tile_size * sizeof(float));
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

// tanh(x) within 2e-7 relative. NaN in, NaN out.
inline Vec tanh(Vec x) {
  const Vec magnitude = x < 0.0F ? -x : x;
  const Vec bounded = magnitude > 10.0F ? broadcast(10.0F) : magnitude;  // the largest float below 1, and more, is 1
  const Vec large = 1.0F - 2.0F / (exp2(bounded * (2.0F * log2_e)) + 1.0F);
  // Minimax polynomial of (tanh(x) / x - 1) / x^2 on |x| < 0.625.
  const Vec square = x * x;
  Vec p = broadcast(-5.70498872745e-3F);
  p = p * square + 2.06390887954e-2F;
  p = p * square - 5.37397155531e-2F;
  p = p * square + 1.33314422036e-1F;
  p = p * square - 3.33332819422e-1F;
  const Vec small = x + x * square * p;
  return magnitude < 0.625F ? small : (x < 0.0F ? -large : large);
}

// RETURNS the smallest range with two others.
inline PlaceRange united(const PlaceRange& a, const PlaceRange& b) {
  if (a.size() == 0) return b;
  if (b.size() == 0) return a;
  return {a.first < b.first ? a.first : b.first, a.end > b.end ? a.end : b.end};
}

// Rows or columns of a tile of scores of which a hidden part is skipped, at least.
constexpr int least_strip = 16;
constexpr int most_strips = tile_size / least_strip;

// Memory that is read soon. Each call begins to read some lines of it, into the second-level cache: a core waits for
// few lines at a time, so calls are spread over a softmax.
class LinesAhead {
 public:
  void add(const void* from, int64_t bytes) {
    if (bytes > 0)
      ranges_[count_++] = {static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes};
  }
  [[gnu::always_inline]] void operator()() {
    if (count_ == 0) return;
    constexpr int64_t step = 512;
    Range& range = ranges_[count_ - 1];
    for (int64_t at = 0; at < step; at += 64) __builtin_prefetch(range.at + at, 0, 2);
    range.at += step;
    if (range.at >= range.end) --count_;
  }

 private:
  struct Range {
    const std::byte *at, *end;
  };

  Range ranges_[4];
  int count_ = 0;
};

// Does nothing instead.
struct NothingAhead {
  void operator()() const {}
};

// Rows of a tile of scores, and keys with all that are computed. `width`: the number of keys as a constant, or 0.
template <int width>
struct ScoreRows {
  int64_t first, count;
  PlaceRange keys;

  int64_t end() const { return first + count; }
  // RETURNS the size of the keys; a constant, if `width` is.
  int64_t cols() const { return width > 0 ? width : keys.size(); }
};

// The pairs of a tile of scores that are seen. Places are relative to the tile.
struct TileMask {
  bool whole;                                    // no pair is hidden, and `front` and `back` are not set
  bool in_strips = false;                        // false: products cover the tile
  bool has_back = false;                         // false: `back` is not set
  int strip_size;                                // rows or columns of a strip
  PlaceRange front[tile_size], back[tile_size];  // keys that each query sees
  // Keys with all that a strip of queries sees, and queries with all that see a strip of keys: multiples of strip_size,
  // and of the same blocks of scores. No other block is computed.
  PlaceRange keys[most_strips], queries[most_strips];

  // `strip_size_`: a multiple of least_strip.
  TileMask(const ScoreTile& tile, int strip_size_)
      : whole(tile.tiles.whole(tile.query_tile, tile.key)), strip_size(strip_size_) {
    if (whole) return;
    const bool rising = find_rows(tile);
    PlaceRange seen[most_strips];
    for (int row = 0; row < tile.queries; row += strip_size) {
      const int end = static_cast<int>(smaller(row + strip_size, tile.queries));
      seen[row / strip_size] = rising ? in_tile({front[row].first, front[end - 1].end}) : seen_by(row, end);
    }
    in_strips = find_strips(seen);
    for (int i = 0; i < num_strips(); ++i) keys[i] = in_strips ? seen[i] : PlaceRange{0, tile_size};
  }

  int num_strips() const { return static_cast<int>(tile_size) / strip_size; }
  // Calls f(first, rows, others) for each strip of some rows, or once for all.
  template <typename F>
  void each_strip(const PlaceRange* others, int64_t rows, const F& f) const {
    if (!in_strips) return f(0, rows, PlaceRange{0, tile_size});
    for (int64_t first = 0; first < rows; first += strip_size)
      f(first, smaller(strip_size, rows - first), others[first / strip_size]);
  }
  // Calls f(ScoreRows) for the rows, with ranges of keys that are multiples of `columns`.
  template <int columns, typename F>
  void each_width(int64_t rows, const F& f) const {
    constexpr int tile = static_cast<int>(tile_size);
    if (!in_strips) return f(ScoreRows<tile>{0, rows, {0, tile}});
    each_strip(keys, rows, [&](int64_t first, int64_t count, const PlaceRange& seen) {
      const PlaceRange all{seen.first / columns * columns, (seen.end + columns - 1) / columns * columns};
      if (all.size() == tile) return f(ScoreRows<tile>{first, count, all});
      if (all.size() == tile / 2) return f(ScoreRows<tile / 2>{first, count, all});
      f(ScoreRows<0>{first, count, all});
    });
  }

 private:
  // RETURNS whether `back` is not set, and the bounds of `front` rise from row to row.
  bool find_rows(const ScoreTile& tile) {
    const KeyTiles<true>& tiles = tile.tiles;
    if (tiles.document_starts == nullptr && tiles.global == 0) {
      if (tiles.picked_queries && tile.key.picked) return find_picked_rows(tile);
      if (!tiles.picked_queries && !tile.key.picked && tiles.kind != AttentionKind::fixed) return find_local_rows(tile);
    }
    has_back = true;
    const int first_key = tile.key.first();
    const auto relative = [&](const PlaceRange& range) {
      return PlaceRange{range.first - first_key, range.end - first_key};
    };
    const PlacedTokens tokens(tile.tiles, tile.tiles.picked_queries, tile.first_query(), tile.queries);
    for (int64_t row = 0; row < tile.queries; ++row) {
      front[row] = back[row] = {};
      if (tokens.at[row] >= tile.tiles.tokens) continue;
      const SeenKeys seen = tile.tiles.seen(tile.tiles.first_query + tokens.at[row]);
      front[row] = relative(tile.key.picked ? seen.picked : seen.global);
      back[row] = relative(tile.key.picked ? seen.picked : seen.local);
    }
    return false;
  }
  // Does so without documents and global tokens: a picked query sees its class up to itself, or to the place before it.
  bool find_picked_rows(const ScoreTile& tile) {
    const int own = tile.tiles.kind == AttentionKind::columns ? 1 : 0;
    const int first = static_cast<int>(tile.first_query()) - tile.key.first();
    int in_class = static_cast<int>(tile.first_query()) % tile.tiles.class_places;
    const int last = static_cast<int>(tile.queries) - 1;
    if (in_class + last < tile.tiles.class_places &&
        tile.tiles.picked_token(static_cast<int>(tile.first_query()) + last) < tile.tiles.tokens) {
      for (int row = 0; row <= last; ++row) front[row] = {first - in_class, first + row + own};
      return true;
    }
    PickedPlace at(tile.tiles, static_cast<int>(tile.first_query()));
    for (int row = 0; row < tile.queries; ++row, at.advance()) {
      const bool empty = at.token() >= tile.tiles.tokens;
      const int place = first + row;
      front[row] = empty ? PlaceRange{place, place} : PlaceRange{place - in_class, place + own};
      if (++in_class == tile.tiles.class_places) in_class = 0;
    }
    return true;
  }
  // Does so for neighbouring queries and keys: the bounds of two queries that are neighbours differ by 1 or 0.
  bool find_local_rows(const ScoreTile& tile) {
    const int token = tile.tiles.first_query + static_cast<int>(tile.first_query()),
              last = static_cast<int>(tile.queries) - 1;
    const PlaceRange begin = tile.tiles.seen(token).local, end = tile.tiles.seen(token + last).local;
    const int first_key = tile.key.first();
    for (int row = 0; row <= last; ++row) {
      // A bound of the first query and one of the last that rises by 1 all the way meet each row's.
      const int rising_first = end.first - (last - row), rising_end = begin.end + row;
      front[row] = {(rising_first > begin.first ? rising_first : begin.first) - first_key,
                    (rising_end < end.end ? rising_end : end.end) - first_key};
    }
    return true;
  }
  // RETURNS the strips of keys that rows see.
  PlaceRange seen_by(int row, int end) const {
    PlaceRange seen;
    for (; row < end; ++row) {
      seen = united(seen, in_tile(front[row]));
      if (has_back) seen = united(seen, in_tile(back[row]));
    }
    return seen;
  }
  // RETURNS the strips of keys that a range touches.
  PlaceRange in_tile(const PlaceRange& range) const {
    const int first = range.first > 0 ? range.first : 0, end = range.end < tile_size ? range.end : tile_size;
    if (end <= first) return {};
    return {first / strip_size * strip_size, (end + strip_size - 1) / strip_size * strip_size};
  }
  // Sets `queries`. RETURNS false if the queries that see a strip of keys are not one range.
  bool find_strips(const PlaceRange* seen) {
    for (int key = 0; key < tile_size; key += strip_size) {
      PlaceRange& range = queries[key / strip_size];
      for (int i = 0; i < num_strips(); ++i) {
        if (!seen[i].contains(key)) continue;
        const PlaceRange strip{i * strip_size, (i + 1) * strip_size};
        if (range.size() > 0 && range.end < strip.first) return false;
        range = united(range, strip);
      }
    }
    return true;
  }
};

// RETURNS capped scores of q k^T. REQUIRES: the head has a softcap.
inline Vec capped(Vec scores, const AttentionHead& head) {
  return tanh(scores * (head.scale / head.softcap)) * head.softcap;
}

// Turns scores q k^T into capped ones, if the head has a softcap.
inline void cap_scores(float* scores, int64_t queries, const AttentionHead& head, const TileMask& mask) {
  if (head.softcap == 0.0F) return;
  mask.each_strip(mask.keys, queries, [&](int64_t first, int64_t rows, const PlaceRange& keys) {
    for (int64_t row = first; row < first + rows; ++row) {
      for (float* at = scores + row * tile_size + keys.first; at < scores + row * tile_size + keys.end; at += lanes)
        store(at, capped(load(at), head));
    }
  });
}

// RETURNS the factor of scores after cap_scores.
inline float factor_after_cap(const AttentionHead& head) { return head.softcap == 0.0F ? head.scale : 1.0F; }

// Sets a row's scores at places outside of one or two ranges to minus infinity, in `keys`, a multiple of the lanes.
inline void hide_row(float* scores, const PlaceRange& keys, const PlaceRange& front, const PlaceRange* back) {
  BitsVec lane;
  for (int i = 0; i < lanes; ++i) lane[i] = static_cast<uint32_t>(i);
  // Vectors of keys that the row sees come first in most rows.
  const bool starts_seen = back == nullptr && front.first <= keys.first && front.end > keys.first;
  const int first = starts_seen ? front.end / lanes * lanes : keys.first;
  for (int col = first; col < keys.end; col += lanes) {
    const auto seen_of = [&](const PlaceRange& range) {
      return lane + static_cast<uint32_t>(col - range.first) < BitsVec{} + static_cast<uint32_t>(range.size());
    };
    const auto seen = back == nullptr ? seen_of(front) : seen_of(front) | seen_of(*back);
    store(scores + col, seen ? load(scores + col) : broadcast(minus_infinity));
  }
}

// Sets scores of keys that a query may not see, or that do not exist, to minus infinity.
inline void mask_scores(float* scores, int64_t queries, const TileMask& mask) {
  if (mask.whole) return;
  const auto hide = [&](bool has_back) {
    mask.each_width<2 * lanes>(queries, [&](const auto& rows) {
      for (int64_t row = rows.first; row < rows.end(); ++row)
        hide_row(scores + row * tile_size, rows.keys, mask.front[row], has_back ? &mask.back[row] : nullptr);
    });
  };
  mask.has_back ? hide(true) : hide(false);
}

// Computes the seen blocks of scores [rows, tile_size] = a b.
template <bool pairs>
void product_of_seen(float* scores, const LeftOperand& a, const Unit* b, int64_t rows, int64_t depth,
                     const TileMask& mask) {
  mask.each_strip(mask.keys, rows, [&](int64_t first, int64_t count, const PlaceRange& keys) {
    product<pairs>({scores + first * tile_size + keys.first, tile_size},
                   {a.units + first * a.row_stride, a.row_stride, a.unit_stride}, {b + keys.first, tile_size},
                   {count, keys.size(), depth}, false);
  });
}

// Computes c (+)= a b, where `a` holds scores of `sizes.rows` queries or keys, and `b` the `tokens` that it is summed
// over. `others`: the mask's keys or queries.
template <bool pairs>
void product_over_seen(ProductRows c, const LeftOperand& a, UnitRows b, const ProductSizes& sizes, bool accumulate,
                       const TileMask& mask, const PlaceRange* others) {
  mask.each_strip(others, sizes.rows, [&](int64_t first, int64_t count, const PlaceRange& summed) {
    constexpr int64_t tokens_per_unit = pairs ? 2 : 1;
    const int64_t from = summed.first / tokens_per_unit, end = smaller(summed.end / tokens_per_unit, sizes.depth);
    product<pairs>({c.values + first * c.stride, c.stride},
                   {a.units + first * a.row_stride + from * a.unit_stride, a.row_stride, a.unit_stride},
                   {b.units + from * b.stride, b.stride}, {count, sizes.cols, end > from ? end - from : 0}, accumulate);
  });
}

// Rows of an operand.
template <typename T>
struct PlacedRows {
  const T* data;
  int64_t stride;
};

template <typename T, size_t n>
using OperandRows = std::array<PlacedRows<T>, n>;

// RETURNS the rows of n operands at `rows` places: in the operands, or for places of the picked order copied to
// `gathered`. Rows of empty places are zero. A token's rows of several operands are read together: picked tokens lie
// far apart, and its rows near to each other.
template <typename T, size_t n>
OperandRows<T, n> rows_at(const AttentionHead& head, const OperandRows<T, n>& operands, bool picked, int64_t place,
                          int64_t rows, Unit* gathered) {
  OperandRows<T, n> result;
  if (!picked) {
    for (size_t i = 0; i < n; ++i) result[i] = {operands[i].data + place * operands[i].stride, operands[i].stride};
    return result;
  }
  const PlacedTokens tokens(head.tiles, true, place, rows);
  T* const to = reinterpret_cast<T*>(gathered);
  const int64_t bytes = head.head_size * static_cast<int64_t>(sizeof(T));
  for (size_t i = 0; i < n; ++i)
    result[i] = {to + static_cast<int64_t>(i) * tile_size * head.head_size, head.head_size};
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < n; ++i) {
      T* const copy = to + (static_cast<int64_t>(i) * tile_size + row) * head.head_size;
      if (tokens.at[row] < head.tokens) {
        copy_row(reinterpret_cast<std::byte*>(copy),
                 reinterpret_cast<const std::byte*>(operands[i].data + tokens.at[row] * operands[i].stride), bytes);
      } else {
        std::memset(copy, 0, bytes);
      }
    }
  }
  return result;
}

// Packs the columns of a tile's rows as rows. `buffer` has room for a tile.
template <typename T, bool pairs>
void pack_columns(Unit* out, Unit* buffer, const Packing<pairs>& packing, const PlacedRows<T>& from, int64_t rows) {
  constexpr auto unit_bytes = static_cast<int64_t>(sizeof(Unit));
  const int64_t stride_bytes = from.stride * static_cast<int64_t>(sizeof(T));
  const bool in_units = (pairs || sizeof(T) == sizeof(Unit)) && packing.head_size % 32 == 0 &&
                        reinterpret_cast<uintptr_t>(from.data) % sizeof(Unit) == 0 && stride_bytes % unit_bytes == 0;
  if (in_units && rows == tile_size) {
    transpose(out, tile_size, reinterpret_cast<const Unit*>(from.data), stride_bytes / unit_bytes, tile_size,
              packing.depth);
    return;
  }
  pack_rows<pairs>(buffer, packing.row_units, from.data, from.stride, rows, packing.head_size);
  pack_transposed(out, packing, buffer);
}

template <typename T>
PlacedRows<T> rows_of(const void* operand, int64_t stride) {
  return {static_cast<const T*>(operand), stride};
}

inline void end_streams() {
#ifdef __AVX512F__
  _mm_sfence();
#endif
}

// Write a row of scaled floats, rounded as assign does, past the caches if its memory is made of whole lines. REQUIRES:
// end_streams is called later.
#ifdef __AVX512F__
inline __m512i line_of(const float* from, float scale, float /*type*/) {
  return _mm512_castps_si512(load(from) * scale);
}
inline __m512i line_of(const float* from, float scale, bf16 /*type*/) {
  using Halves [[gnu::vector_size(64)]] = uint16_t;
  Halves upper;  // halves of both vectors
  for (int i = 0; i < 2 * lanes; ++i) upper[i] = static_cast<uint16_t>(2 * i + 1);
  const auto rounded = [&](Vec value) {
    const auto bits = reinterpret_cast<BitsVec>(value);
    return reinterpret_cast<Halves>(value == value ? bits + 0x7fffU + ((bits >> 16) & 1U) : bits | 0x400000U);
  };
  return reinterpret_cast<__m512i>(
      __builtin_shuffle(rounded(load(from) * scale), rounded(load(from + lanes) * scale), upper));
}
#endif

template <typename T>
void stream_row(T* to, const float* from, int64_t cols, float scale) {
#ifdef __AVX512F__
  constexpr auto line = static_cast<int64_t>(64 / sizeof(T));
  if (cols % line == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
    for (int64_t col = 0; col < cols; col += line)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + col), line_of(from + col, scale, T()));
    return;
  }
#endif
  store_rows(to, 0, from, 0, 1, cols, scale);
}

}  // namespace
}  // namespace gptrain::ops
