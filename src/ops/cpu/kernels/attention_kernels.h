// Attention of one query head, tile by tile. Included only by matrix_kernels.cpp, which is compiled once per
// instruction set.
#pragma once

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

// factors[c] = 0 if the probability of (query, first_key + c) is dropped, else keep_scale. REQUIRES: first_key is a
// multiple of 4.
inline void dropout_factors(float* factors, const AttentionHead& head, int64_t query, int64_t first_key) {
  const DropoutCounters counters{head.key0,       head.key1,        static_cast<uint32_t>(query),
                                 head.sample_low, head.sample_high, head.drop_threshold,
                                 head.keep_scale};
  for (int first = 0; first < tile_size / 4; first += philox_counters) {
    dropout_factors(factors + 4 * first, counters, static_cast<uint32_t>(first_key / 4 + first));
  }
}

// RETURNS the first key that a query sees. It never decreases from one query to the next.
inline int64_t first_seen(const AttentionHead& head, int64_t query) {
  const int64_t of_window = head.window > 0 && query >= head.window ? query - head.window + 1 : 0;
  const int64_t of_document = head.document_starts != nullptr ? head.document_starts[query] : 0;
  return of_window > of_document ? of_window : of_document;
}

// RETURNS the first key of the first key tile that a tile of queries sees.
inline int64_t first_seen_tile(const AttentionHead& head, int64_t first_query) {
  return first_seen(head, first_query) / tile_size * tile_size;
}

// Sets scores of keys that a query may not see, or that do not exist, to minus infinity.
inline void mask_scores(float* scores, const AttentionHead& head, int64_t first_query, int64_t queries,
                        int64_t first_key) {
  const bool starts_late = first_seen(head, first_query + queries - 1) > first_key;
  if (!(head.causal && first_key == first_query) && first_key + tile_size <= head.tokens && !starts_late) return;
  for (int64_t row = 0; row < queries; ++row) {
    const int64_t first = starts_late ? first_seen(head, first_query + row) - first_key : 0;
    for (int64_t col = 0; col < smaller(first, tile_size); ++col) scores[row * tile_size + col] = minus_infinity;
    const int64_t end_key = head.causal ? smaller(first_query + row + 1, head.tokens) : head.tokens;
    for (int64_t col = end_key > first_key ? end_key - first_key : 0; col < tile_size; ++col) {
      scores[row * tile_size + col] = minus_infinity;
    }
  }
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

// RETURNS the number subtracted from a row's scores: 0 while the row has seen no key.
inline float softmax_base(float row_max) { return row_max == minus_infinity ? 0.0F : row_max; }

// A tile of scores.
struct ScoreTile {
  const AttentionHead& head;
  int64_t query, queries, key;  // first query, number of queries, first key
};

// Outputs of a tile of queries, not yet normalised, and their softmax's statistics.
struct RunningOutputs {
  float *row_max, *row_sum;
  float* o;
  int64_t width, cols;  // floats of a row of o, and those that hold elements
};

// Turns one tile of scores into unnormalised probabilities exp(score * scale - row_max) after dropout, in place or, for
// pairs, in `probabilities`. Updates the running maximum of each row and rescales its sum and output to it.
template <bool pairs>
void online_softmax(float* scores, Unit* probabilities, const RunningOutputs& outputs, const ScoreTile& tile) {
  const auto [row_max, row_sum, o, width, cols] = outputs;
  const auto& [head, first_query, rows, first_key] = tile;
  const float scale = head.scale;
  alignas(64) float shrink[tile_size];
  for (int64_t row = 0; row < tile_size; ++row) shrink[row] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    Vec largest = load(scores + row * tile_size);
    for (int64_t col = lanes; col < tile_size; col += lanes) {
      const Vec values = load(scores + row * tile_size + col);
      largest = values > largest ? values : largest;
    }
    const float row_largest = largest_lane(largest) * scale;
    const float before = row_max[row];
    row_max[row] = row_largest > before ? row_largest : before;
    shrink[row] = before - softmax_base(row_max[row]);
  }
  for (int64_t row = 0; row < tile_size; row += lanes) store(shrink + row, exp2(load(shrink + row) * log2_e));
  for (int64_t row = 0; row < rows; ++row) {
    float* const values = scores + row * tile_size;
    const Vec max = broadcast(softmax_base(row_max[row]));
    Vec sum = Vec{};
    alignas(64) float factors[tile_size];
    if (head.drop_threshold != 0) dropout_factors(factors, head, first_query + row, first_key);
    const auto kept = [&](int64_t col) {
      const Vec p = exp2((load(values + col) * scale - max) * log2_e);
      sum += p;
      return head.drop_threshold != 0 ? p * load(factors + col) : p;
    };
    for (int64_t col = 0; col < tile_size; col += 2 * lanes) {
      const Vec first = kept(col), second = kept(col + lanes);
      if constexpr (pairs) {
        store(probabilities + (row * tile_size + col) / 2, pair_neighbours(first, second));
      } else {
        store(values + col, first);
        store(values + col + lanes, second);
      }
    }
    store(row_sum + row * 16, load(row_sum + row * 16) * shrink[row] + sum);
    if (shrink[row] == 1.0F) continue;
    for (int64_t col = 0; col < cols; col += lanes) {
      store(o + row * width + col, load(o + row * width + col) * shrink[row]);
    }
  }
}

template <typename T, bool pairs>
void finish_forward(const AttentionHead& head, int64_t first_query, int64_t rows, int64_t width, const float* o,
                    const float* row_max, const float* row_sum) {
  for (int64_t row = 0; row < rows; ++row) {
    float sum = 0;
    for (int i = 0; i < lanes; ++i) sum += row_sum[row * 16 + i];
    T* const to = static_cast<T*>(head.o) + (first_query + row) * head.o_stride;
    store_rows(to, 0, o + row * width, 0, 1, head.head_size, 1.0F / sum);
    head.lse[first_query + row] = row_max[row] + __builtin_logf(sum);
  }
}

template <typename T, bool pairs>
void forward_tiles(const AttentionHead& head, int64_t first_tile, int64_t count,
                   const AttentionForwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  const int64_t first_query = first_tile * tile_size;
  const int64_t end_query = smaller(first_query + count * tile_size, head.tokens);
  for (int64_t tile = 0; tile < count; ++tile) {
    const int64_t query = first_query + tile * tile_size;
    pack_rows<pairs>(buffers.q + tile * packing.tile, packing.row_units,
                     static_cast<const T*>(head.q) + query * head.q_stride, head.q_stride,
                     smaller(tile_size, head.tokens - query), head.head_size);
  }
  std::memset(buffers.o, 0, static_cast<size_t>(count * packing.tile * 4));
  std::memset(buffers.row_sum, 0, static_cast<size_t>(count * tile_size * 16 * 4));
  for (int64_t row = 0; row < count * tile_size; ++row) buffers.row_max[row] = minus_infinity;

  const int64_t end_key = head.causal ? end_query : head.tokens;
  for (int64_t key = first_seen_tile(head, first_query); key < end_key; key += tile_size) {
    const int64_t keys = smaller(tile_size, head.tokens - key);
    pack_transposed<T, pairs>(buffers.k, buffers.k_rows, packing, static_cast<const T*>(head.k) + key * head.k_stride,
                              head.k_stride, keys);
    const T* const v = static_cast<const T*>(head.v) + key * head.v_stride;
    if constexpr (pairs) {
      pack_row_pairs(buffers.v, packing.width, v, head.v_stride, keys, head.head_size);
    } else {
      pack_rows<false>(buffers.v, packing.width, v, head.v_stride, keys, head.head_size);
    }
    for (int64_t tile = 0; tile < count; ++tile) {
      const int64_t query = first_query + tile * tile_size;
      if ((head.causal && key > query) || key < first_seen_tile(head, query)) continue;
      const int64_t queries = smaller(tile_size, head.tokens - query);
      const int64_t rows = round_up(queries, product_rows);
      float* const scores = buffers.scores;
      product<pairs>({scores, tile_size}, {buffers.q + tile * packing.tile, packing.row_units, 1},
                     {buffers.k, tile_size}, {rows, tile_size, packing.depth}, false);
      mask_scores(scores, head, query, queries, key);
      float* const o = buffers.o + tile * packing.tile;
      const RunningOutputs outputs{.row_max = buffers.row_max + tile * tile_size,
                                   .row_sum = buffers.row_sum + tile * tile_size * 16,
                                   .o = o,
                                   .width = packing.width,
                                   .cols = packing.cols};
      online_softmax<pairs>(scores, buffers.probabilities, outputs,
                            {.head = head, .query = query, .queries = queries, .key = key});
      const Unit* const probabilities = pairs ? buffers.probabilities : reinterpret_cast<const Unit*>(scores);
      product<pairs>({o, packing.width}, {probabilities, pairs ? tile_size / 2 : tile_size, 1},
                     {buffers.v, packing.width}, {rows, packing.cols, packing.token_units(keys)}, true);
    }
  }
  for (int64_t tile = 0; tile < count; ++tile) {
    const int64_t query = first_query + tile * tile_size;
    finish_forward<T, pairs>(head, query, smaller(tile_size, head.tokens - query), packing.width,
                             buffers.o + tile * packing.tile, buffers.row_max + tile * tile_size,
                             buffers.row_sum + tile * tile_size * 16);
  }
}

// Probabilities after dropout, p, and gradients of q k^T, ds, of some keys of a query.
struct KeyGradients {
  Vec p, ds;
};

// Computes them from q k^T and d_o v^T. `factors`: dropout's; nullptr: no dropout.
inline KeyGradients softmax_gradients(Vec score, Vec dp, const float* factors, float lse, float delta, float scale) {
  const Vec p = exp2((score * scale - lse) * log2_e);
  if (factors == nullptr) return {p, p * (dp - delta) * scale};
  const Vec factor = load(factors);
  return {p * factor, p * (dp * factor - delta) * scale};
}

// A tile of queries and keys in backward, with its queries' statistics.
struct GradientTile {
  const AttentionHead& head;
  int64_t query, queries, key;
  const float *lse, *delta;  // point at the first query's values
};

// Turns scores = q k^T into probabilities and d_scores = d_o v^T into gradients, in place. Rows past the last query
// become zero.
inline void softmax_backward(float* scores, float* d_scores, const GradientTile& tile) {
  alignas(64) float factors[tile_size];
  const bool drops = tile.head.drop_threshold != 0;
  for (int64_t row = 0; row < tile.queries; ++row) {
    float* const p_row = scores + row * tile_size;
    float* const ds_row = d_scores + row * tile_size;
    if (drops) dropout_factors(factors, tile.head, tile.query + row, tile.key);
    for (int64_t col = 0; col < tile_size; col += lanes) {
      const KeyGradients result =
          softmax_gradients(load(p_row + col), load(ds_row + col), drops ? factors + col : nullptr, tile.lse[row],
                            tile.delta[row], tile.head.scale);
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
inline void softmax_backward_pairs(const float* scores, const float* d_scores, const GradientTile& tile,
                                   const AttentionBackwardBuffers& buffers) {
  alignas(64) float factors[2][tile_size];
  const bool drops = tile.head.drop_threshold != 0;
  for (int64_t row = 0; row < tile.queries; row += 2) {
    float lse[2] = {tile.lse[row], -minus_infinity}, delta[2] = {tile.delta[row], 0};
    if (row + 1 < tile.queries) {
      lse[1] = tile.lse[row + 1];
      delta[1] = tile.delta[row + 1];
    }
    for (int r = 0; r < 2 && drops; ++r) dropout_factors(factors[r], tile.head, tile.query + row + r, tile.key);
    for (int64_t col = 0; col < tile_size; col += 2 * lanes) {
      KeyGradients of[2][2];
      for (int r = 0; r < 2; ++r) {
        for (int n = 0; n < 2; ++n) {
          const int64_t at = (row + r) * tile_size + col + n * lanes;
          of[r][n] =
              softmax_gradients(load(scores + at), load(d_scores + at), drops ? factors[r] + col + n * lanes : nullptr,
                                lse[r], delta[r], tile.head.scale);
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

// Prepares, for the sweep over key tiles, packed q and d_o of all queries, and delta = d_o . o.
template <typename T, bool pairs>
void prepare_queries(const AttentionHead& head, const Packing<pairs>& packing,
                     const AttentionBackwardBuffers& buffers) {
  for (int64_t query = 0, tile = 0; query < head.tokens; query += tile_size, ++tile) {
    const int64_t rows = smaller(tile_size, head.tokens - query);
    const auto pack = [&](Unit* out, const void* operand, int64_t stride) {
      const T* const from = static_cast<const T*>(operand) + query * stride;
      if constexpr (pairs && tile_products) {
        pack_for_tiles(out + tile * packing.tile, buffers.k_rows, packing, from, stride, rows);
      } else {
        pack_both<T, pairs>(out + tile * packing.tile, packing, from, stride, rows);
      }
    };
    pack(buffers.q, head.q, head.q_stride);
    pack(buffers.d_o, head.d_o, head.d_o_stride);
  }
  for (int64_t query = 0; query < head.tokens; ++query) {
    const T* const o = static_cast<const T*>(head.o) + query * head.o_stride;
    const T* const d_o = static_cast<const T*>(head.d_o) + query * head.d_o_stride;
    float partial[16] = {};
    int64_t col = 0;
    for (; col + 16 <= head.head_size; col += 16) {
      for (int i = 0; i < 16; ++i) partial[i] += as_float(o[col + i]) * as_float(d_o[col + i]);
    }
    float sum = 0;
    for (; col < head.head_size; ++col) sum += as_float(o[col]) * as_float(d_o[col]);
    for (int i = 0; i < 16; ++i) sum += partial[i];
    buffers.delta[query] = sum;
  }
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

template <typename T, bool pairs>
void backward_head(const AttentionHead& head, bool first_of_group, bool last_of_group,
                   const AttentionBackwardBuffers& buffers) {
  const Packing<pairs> packing(head.head_size);
  prepare_queries<T, pairs>(head, packing, buffers);
  const int64_t pairs_offset = pairs ? packing.tile / 2 : 0;  // offset of the rows for sums over the rows

  for (int64_t key = 0, key_tile = 0; key < head.tokens; key += tile_size, ++key_tile) {
    const int64_t keys = smaller(tile_size, head.tokens - key);
    const int64_t key_rows = round_up(keys, product_rows);
    const T* const k = static_cast<const T*>(head.k) + key * head.k_stride;
    // v first: its rows are not needed after transposing, but k's rows are (for dq).
    pack_transposed<T, pairs>(buffers.v, buffers.k_rows, packing, static_cast<const T*>(head.v) + key * head.v_stride,
                              head.v_stride, keys);
    const Unit* const k_for_dq = pack_both<T, pairs>(buffers.k_rows, packing, k, head.k_stride, keys);
    transpose(buffers.k, tile_size, buffers.k_rows, packing.row_units, tile_size, round_up(packing.depth, 16));
    float* const dk = buffers.dk + (buffers.grouped ? key_tile * packing.tile : 0);
    float* const dv = buffers.dv + (buffers.grouped ? key_tile * packing.tile : 0);

    const int64_t first_tile = head.causal ? key_tile : 0;
    for (int64_t tile = first_tile; tile * tile_size < head.tokens; ++tile) {
      const int64_t query = tile * tile_size;
      if (first_seen_tile(head, query) > key) break;
      const int64_t queries = smaller(tile_size, head.tokens - query);
      const int64_t rows = round_up(queries, product_rows);
      const Unit* const q = buffers.q + tile * packing.tile;
      const Unit* const d_o = buffers.d_o + tile * packing.tile;
      float* const scores = buffers.scores;
      float* const d_scores = buffers.d_scores;
      const ProductSizes of_scores{rows, tile_size, packing.depth};
      product<pairs>({scores, tile_size}, {q, packing.row_units, 1}, {buffers.k, tile_size}, of_scores, false);
      product<pairs>({d_scores, tile_size}, {d_o, packing.row_units, 1}, {buffers.v, tile_size}, of_scores, false);
      mask_scores(scores, head, query, queries, key);
      const GradientTile at{head, query, queries, key, head.lse + query, buffers.delta + query};
      LeftOperand p_transposed{buffers.p_pairs, 1, tile_size};
      LeftOperand ds_transposed{buffers.ds_pairs, 1, tile_size};
      LeftOperand ds{buffers.ds_rows, tile_size / 2, 1};
      if constexpr (pairs) {
        softmax_backward_pairs(scores, d_scores, at, buffers);
      } else {
        softmax_backward(scores, d_scores, at);
        p_transposed.units = reinterpret_cast<const Unit*>(scores);
        ds_transposed.units = reinterpret_cast<const Unit*>(d_scores);
        ds = {ds_transposed.units, tile_size, 1};
      }
      const bool add = !first_of_group || tile > first_tile;
      const int64_t query_units = packing.token_units(queries);
      if constexpr (pairs && tile_products) {
        // dv^T = d_o^T p and dk^T = q^T ds: p and ds need no packing as right factors of tiles.
        const ProductSizes sizes{packing.cols, key_rows, query_units};
        product<pairs>({dv, tile_size}, {d_o + pairs_offset, tile_size / 2, 1}, {p_transposed.units, tile_size}, sizes,
                       add);
        product<pairs>({dk, tile_size}, {q + pairs_offset, tile_size / 2, 1}, {ds_transposed.units, tile_size}, sizes,
                       add);
      } else {
        const ProductSizes sizes{key_rows, packing.cols, query_units};
        product<pairs>({dv, packing.width}, p_transposed, {d_o + pairs_offset, packing.width}, sizes, add);
        product<pairs>({dk, packing.width}, ds_transposed, {q + pairs_offset, packing.width}, sizes, add);
      }
      product<pairs>({buffers.dq + tile * packing.tile, packing.width}, ds, {k_for_dq, packing.width},
                     {rows, packing.cols, packing.token_units(keys)}, key > first_seen_tile(head, query));
    }
    if (!last_of_group) continue;
    const auto store_keys = [&](void* to, int64_t stride, const float* from) {
      T* const rows = static_cast<T*>(to) + key * stride;
      if constexpr (pairs && tile_products) {
        store_transposed(rows, stride, from, buffers.scores, keys, head.head_size);
      } else {
        store_rows(rows, stride, from, packing.width, keys, head.head_size, 1.0F);
      }
    };
    store_keys(head.dk, head.dk_stride, dk);
    store_keys(head.dv, head.dv_stride, dv);
  }
  store_rows(static_cast<T*>(head.dq), head.dq_stride, buffers.dq, packing.width, head.tokens, head.head_size, 1.0F);
}

}  // namespace
}  // namespace gptrain::ops
