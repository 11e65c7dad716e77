// Tiles of products of float matrices on vectors. Each tile of b is packed once for all rows of the tile of c. While it
// is multiplied, the next one is fetched, line by line: a burst of fetches would wait for memory. The last products of
// a sum are stored where they belong, between those of other rows.
//
// Each element adds its products in the order of the depth, so its bits depend neither on the tiles nor on their rows.
#pragma once

#include "ops/cpu/kernels/tile.h"

namespace gptrain::inline ops {
namespace {

// A tile of the result.
struct CTile {
  int64_t row, col, rows, cols;
};

constexpr int64_t terms_per_fetch = 8;
// Number of terms that blocks add to their sums at a time. With more, packed weights leave the first-level cache; with
// fewer, sums are read and written more often.
constexpr int64_t float_terms = 128;

enum class StoreKind { cached, past_caches };

template <StoreKind kind>
void store_product(float* to, Vec value) {
#ifdef __AVX512F__
  if constexpr (kind == StoreKind::past_caches) return _mm512_stream_ps(to, reinterpret_cast<__m512>(value));
#endif
  store(to, value);
}

// to = from + a b for columns of so many vectors, or a b if `from` is nullptr. REQUIRES: rows is a multiple of
// product_rows.
template <int vectors, StoreKind kind>
void float_strip(ProductRows to, const float* from, LeftOperand a, UnitRows b, int64_t rows, int64_t depth,
                 RowFetcher& fetcher) {
  for (int64_t row = 0; row < rows; row += product_rows) {
    Vec acc[product_rows][vectors];
    for (int r = 0; r < product_rows; ++r) {
      for (int n = 0; n < vectors; ++n)
        acc[r][n] = from != nullptr ? load(from + (row + r) * tile_size + n * lanes) : Vec{};
    }
    const Unit* left = a.units + row * a.row_stride;
    const Unit* right = b.units;
    for (int64_t k = 0; k < depth; k += terms_per_fetch) {
      const int64_t terms = smaller(terms_per_fetch, depth - k);
      for (int64_t term = 0; term < terms; ++term) {
        Vec columns[vectors];
        for (int n = 0; n < vectors; ++n) columns[n] = load(right + n * lanes);
        for (int r = 0; r < product_rows; ++r) {
          const Vec factor = broadcast(__builtin_bit_cast(float, left[r * a.row_stride]));
          for (int n = 0; n < vectors; ++n) acc[r][n] = multiply_add<false>(factor, columns[n], acc[r][n]);
        }
        left += a.unit_stride;
        right += b.stride;
      }
      fetcher.step();
    }
    for (int r = 0; r < product_rows; ++r) {
      for (int n = 0; n < vectors; ++n) store_product<kind>(to.values + (row + r) * to.stride + n * lanes, acc[r][n]);
    }
  }
}

constexpr int widest_strip = lanes == 16 ? 4 : 2;

// Does the same for columns that are a multiple of 16.
template <StoreKind kind>
void float_product(ProductRows to, const float* from, LeftOperand a, UnitRows b, ProductSizes sizes,
                   RowFetcher& fetcher) {
  int64_t col = 0;
  const auto strip = [&](auto vectors) {
    constexpr int count = decltype(vectors)::value;
    float_strip<count, kind>({to.values + col, to.stride}, from != nullptr ? from + col : nullptr, a,
                             {b.units + col, b.stride}, sizes.rows, sizes.depth, fetcher);
    col += count * lanes;
  };
  while (col + widest_strip * lanes <= sizes.cols) strip(std::integral_constant<int, widest_strip>());
  if (widest_strip > 2 && col + 2 * lanes <= sizes.cols) strip(std::integral_constant<int, 2>());
  while (col < sizes.cols) strip(std::integral_constant<int, 1>());
}

// Copies rows of `cols` floats to rows whose length is a multiple of tile_size, with zeros behind them up to a multiple
// of `multiple` columns.
inline void copy_float_rows(Unit* out, const float* from, int64_t stride, int64_t rows, int64_t cols,
                            int64_t multiple) {
  const int64_t width = round_up(cols, tile_size);
  for (int64_t row = 0; row < rows; ++row)
    pack_row<false>(out + row * width, round_up(cols, multiple), from + row * stride, cols);
}

// The operands of a tile for so many terms of the depth.
struct FloatOperands {
  const TiledLinear& op;
  const CTile& at;
  const TiledLinearBuffers& buffers;

  // RETURNS rows of a, where they lie if they are whole groups.
  LeftOperand left(int64_t first, int64_t depth) const {
    const float* const from = static_cast<const float*>(op.a) + at.row * op.a_row_stride + first * op.a_col_stride;
    if (op.a_col_stride != 1) {
      copy_float_rows(buffers.a, from, op.a_col_stride, depth, at.rows, product_rows);
      return {buffers.a, 1, tile_size};
    }
    if (at.rows % product_rows == 0) return {reinterpret_cast<const Unit*>(from), op.a_row_stride, 1};
    copy_float_rows(buffers.a, from, op.a_row_stride, at.rows, depth, 1);
    const int64_t width = round_up(depth, tile_size), unfilled = round_up(at.rows, product_rows) - at.rows;
    std::memset(buffers.a + at.rows * width, 0, unfilled * width * 4);
    return {buffers.a, width, 1};
  }
  const float* b_from(int64_t first, int64_t col) const {
    return static_cast<const float*>(op.b) + first * op.b_row_stride + col * op.b_col_stride;
  }
  // RETURNS rows of the depth of a tile of b: where they lie, if few rows of a read them, else packed.
  UnitRows right(int64_t first, int64_t depth, RowFetcher& fetcher) const {
    constexpr int64_t few_rows = 8;
    const float* const from = b_from(first, at.col);
    const UnitRows packed{buffers.b, tile_size};
    if (op.b_col_stride == 1) {
      if (at.rows <= few_rows && at.cols % 16 == 0) return {reinterpret_cast<const Unit*>(from), op.b_row_stride};
      copy_float_rows(buffers.b, from, op.b_row_stride, depth, at.cols, 16);
      return packed;
    }
    const Unit* rows = reinterpret_cast<const Unit*>(from);
    int64_t stride = op.b_col_stride;
    if (at.cols % 16 != 0 || depth % 16 != 0) {
      const int64_t width = round_up(depth, tile_size);
      pack_rows<false>(buffers.staging, width, from, stride, at.cols, depth);
      rows = buffers.staging;
      stride = width;
    }
    for (int64_t row = 0; row < round_up(at.cols, 16); row += lanes) {
      for (int64_t col = 0; col < depth; col += lanes) {
        transpose_block(buffers.b + col * tile_size + row, tile_size, rows + row * stride + col, stride);
        fetcher.step();
      }
    }
    return packed;
  }
};

// RETURNS a fetcher, for so many steps, of the tile of b behind that of `first`: deeper or, behind the last, of the
// next columns.
inline RowFetcher fetch_behind(const TiledLinear& op, const CTile& at, int64_t first, int64_t steps) {
  const bool deeper = first + tile_size < op.depth;
  const int64_t next = deeper ? first + tile_size : 0, col = deeper ? at.col : at.col + tile_size;
  const int64_t depth = smaller(tile_size, op.depth - next), cols = smaller(tile_size, op.cols - col);
  if (cols <= 0) return {};
  const float* const from = static_cast<const float*>(op.b) + next * op.b_row_stride + col * op.b_col_stride;
  if (op.b_col_stride == 1) return fetch_rows_of(from, op.b_row_stride, depth, cols, steps);
  return fetch_rows_of(from, op.b_col_stride, cols, depth, steps);
}

// RETURNS the steps of a fetcher in float_products.
inline int64_t steps_of_products(const TiledLinear& op, const CTile& at, int64_t depth) {
  const int64_t cols = round_up(at.cols, 16), strip = widest_strip * lanes;
  const int64_t blocks = op.b_col_stride == 1 ? 0 : cols * round_up(depth, 16) / (lanes * lanes);
  return blocks + (cols + strip - 1) / strip * (round_up(at.rows, product_rows) / product_rows) *
                      ((depth + terms_per_fetch - 1) / terms_per_fetch);
}

// Where a tile of c is computed.
struct FloatTarget {
  float* sums;       // [tile_size][tile_size], of the terms before the last
  bool direct;       // the last terms are added where the tile belongs, else in `sums`
  bool past_caches;  // these are stored past the caches

  // Whole vectors to which nothing is added are stored directly.
  FloatTarget(const TiledLinear& op, const CTile& at, float* sums_)
      : sums(sums_),
        direct(op.c_dtype == DType::f32 && op.bias == nullptr && !op.accumulate && at.rows % product_rows == 0 &&
               at.cols % 16 == 0) {
    constexpr int64_t line_bytes = 64;
    past_caches = direct && op.writes_past_caches && lanes == 16 && op.c_stride % lanes == 0 &&
                  reinterpret_cast<uintptr_t>(place(op, at)) % line_bytes == 0;
  }
  static float* place(const TiledLinear& op, const CTile& at) {
    return static_cast<float*>(op.c) + at.row * op.c_stride + at.col;
  }
};

// Terms [first, first + count) of a sum.
struct Terms {
  int64_t first, count;
};

// Adds `terms` to a tile: at most tile_size, or float_terms if the buffers have room for as many. `right`:
// operands.right of these terms.
inline void float_products(const FloatOperands& operands, const FloatTarget& target, const Terms& terms, UnitRows right,
                           RowFetcher& fetcher) {
  const TiledLinear& op = operands.op;
  const CTile& at = operands.at;
  const ProductSizes sizes{round_up(at.rows, product_rows), round_up(at.cols, 16), terms.count};
  const LeftOperand left = operands.left(terms.first, terms.count);
  const float* const before = terms.first > 0 ? target.sums : nullptr;
  const ProductRows c{FloatTarget::place(op, at), op.c_stride};
  if (!target.direct || terms.first + terms.count < op.depth) {
    float_product<StoreKind::cached>({target.sums, tile_size}, before, left, right, sizes, fetcher);
  } else if (target.past_caches) {
    float_product<StoreKind::past_caches>(c, before, left, right, sizes, fetcher);
  } else {
    float_product<StoreKind::cached>(c, before, left, right, sizes, fetcher);
  }
}

// Computes a tile of c. RETURNS whether it is stored; else it is in buffers.c. REQUIRES: a depth above 0.
inline bool float_tile(const TiledLinear& op, const CTile& at, const TiledLinearBuffers& buffers) {
  const FloatTarget target(op, at, buffers.c);
  for (int64_t first = 0; first < op.depth; first += tile_size) {
    const Terms terms{first, smaller(tile_size, op.depth - first)};
    RowFetcher fetcher = fetch_behind(op, at, first, steps_of_products(op, at, terms.count));
    const FloatOperands operands{op, at, buffers};
    float_products(operands, target, terms, operands.right(first, terms.count, fetcher), fetcher);
  }
#ifdef __AVX512F__
  if (target.past_caches) _mm_sfence();
#endif
  return target.direct;
}

// RETURNS a fetcher that takes `steps` steps to fetch the terms of b after a chunk: the next chunk's or, after the last
// chunk, the first ones of the next block.
inline RowFetcher fetch_terms(const TiledLinear& op, const LinearBlock& block, int64_t next, int64_t most,
                              int64_t steps) {
  const auto* const b = static_cast<const float*>(op.b) + block.col * op.b_col_stride;
  const float* const from = next < op.depth ? b + next * op.b_row_stride : static_cast<const float*>(block.next);
  if (from == nullptr) return {};
  const int64_t terms = smaller(most, next < op.depth ? op.depth - next : op.depth);
  if (op.b_col_stride == 1) return fetch_rows_of(from, op.b_row_stride, terms, block.cols, steps);
  return fetch_rows_of(from, op.b_col_stride, block.cols, terms, steps);
}

// Computes a block in chunks of the depth. It adds a chunk for all columns before the next one, so that rows of b with
// contiguous columns are read from end to end. Tiles of b are packed once for all rows. Calls store(tile, sums) for
// each tile that is not stored in place (FloatTarget::direct). REQUIRES: a depth above 0; buffers.c has a tile for each
// tile of the block.
template <typename F>
void float_block(const TiledLinear& op, const LinearBlock& block, const TiledLinearBuffers& buffers, const F& store) {
  // Few terms where their products take less time than reading them: rows of few pages are then read by turns.
  constexpr int64_t few_rows = 16, few_terms = 16;
  const int64_t chunk = block.rows <= few_rows && op.b_col_stride == 1 ? few_terms : float_terms;
  const int64_t tiles = (block.cols + tile_size - 1) / tile_size;
  for (int64_t first = 0; first < op.depth; first += chunk) {
    const Terms terms{first, smaller(chunk, op.depth - first)};
    const auto columns_at = [&](int64_t col) {
      return CTile{block.row, block.col + col, block.rows, smaller(tile_size, block.cols - col)};
    };
    const int64_t steps = tiles * steps_of_products(op, columns_at(0), terms.count);
    RowFetcher fetcher = fetch_terms(op, block, first + chunk, chunk, steps);
    float* sums = buffers.c;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      CTile at = columns_at(tile * tile_size);
      const UnitRows right = FloatOperands{op, at, buffers}.right(first, terms.count, fetcher);
      for (int64_t row = 0; row < block.rows; row += tile_size, sums += tile_size * tile_size) {
        at.row = block.row + row;
        at.rows = smaller(tile_size, block.rows - row);
        const FloatTarget target(op, at, sums);
        float_products({op, at, buffers}, target, terms, right, fetcher);
        if (first + chunk >= op.depth && !target.direct) store(at, target.sums);
      }
    }
  }
}

}  // namespace
}  // namespace gptrain::ops
