// Products of large matrices of bfloat16 on AMX tiles. In a block of the result, columns of b are packed once for each
// chunk of the depth, and rows of a by strips of 32. Tiles are packed in the order in which the products read them.
//
// While the tiles multiply a strip, the vector units pack the next one and store sums: work of both kinds alternates in
// the program so that the processor, which looks ahead by several hundred instructions, runs it at once.
//
// Each element sums the depth in chunks of linear_block_depth in order, so its bits depend neither on the blocks nor on
// the number of threads.
#pragma once

#include "ops/cpu/kernels/linear_packing.h"

namespace gptrain::inline ops {
namespace {

// A sum [32][32] that is stored row of c by row of c, with the op's bias and, if the op accumulates, added to c. With
// c_by_columns a row of c is a column of the sum.
struct StoredSum {
  float* sum = nullptr;
  int64_t row = 0, col = 0, rows = 0, cols = 0;  // its place in c
  bool interleaved = false;                      // as interleave_pairs leaves columns
  int64_t next = 0;                              // row of c

  bool has_rows() const { return next < rows; }

  void store_row(const TiledLinear& op) {
    const int64_t from = next++;
    const int64_t at = (row + from) * op.c_stride + col;
    const bf16* const bias = op.bias == nullptr ? nullptr : static_cast<const bf16*>(op.bias) + col;
#ifdef __AVX512BF16__
    if (cols == strip) {
      if (!op.c_by_columns) {
        Vec left = load(sum + from * strip), right = load(sum + from * strip + lanes);
        if (interleaved) restore_order(left, right);
        return store_whole_row(op, left, right, at, bias);
      }
      const int64_t first = from / lanes * lanes;
      if (from == first) transpose_columns(first);
      const float* const left = sum + (from - first) * strip + first;
      return store_whole_row(op, load(left), load(left + lanes * strip), at, bias);
    }
#endif
    const int64_t step = op.c_by_columns ? strip : 1;
    for (int64_t i = 0; i < cols; ++i) {
      const float value = sum[from * (strip + 1 - step) + i * step] + (bias == nullptr ? 0.0F : as_float(bias[i]));
      if (op.c_dtype == DType::bf16) {
        assign(static_cast<bf16*>(op.c)[at + i], value);
      } else {
        float& to = static_cast<float*>(op.c)[at + i];
        to = op.accumulate ? to + value : value;
      }
    }
  }

#ifdef __AVX512BF16__
  // Transposes two blocks of 16 columns where they lie.
  void transpose_columns(int64_t first) {
    Unit* const block = reinterpret_cast<Unit*>(sum) + first;
    transpose_block(block, strip, block, strip);
    transpose_block(block + lanes * strip, strip, block + lanes * strip, strip);
  }
  static void store_whole_row(const TiledLinear& op, Vec left, Vec right, int64_t at, const bf16* bias) {
    if (bias != nullptr) {
      left += reinterpret_cast<Vec>(load_halves(bias) << 16);
      right += reinterpret_cast<Vec>(load_halves(bias + lanes) << 16);
    }
    if (op.c_dtype == DType::bf16) return store(static_cast<bf16*>(op.c) + at, pair_neighbours(left, right));
    float* const to = static_cast<float*>(op.c) + at;
    if (op.accumulate) {
      store(to, load(to) + left);
      store(to + lanes, load(to + lanes) + right);
    } else if (reinterpret_cast<uintptr_t>(to) % 64 == 0) {
      // Past the caches: gradients of weights are read again only after those of other layers.
      _mm512_stream_ps(to, left);
      _mm512_stream_ps(to + lanes, right);
    } else {
      store(to, left);
      store(to + lanes, right);
    }
  }
#endif
};

// Work of the vector units beside the products of tiles, in shares of a step: the next strip of an operand is packed, a
// later one fetched, and a sum is stored.
template <typename Packer>
struct SideWork {
  const TiledLinear& op;
  Packer packer;
  StoredSum stored;
  RowFetcher fetcher = {};
  int64_t parts_per_step = 0;    // parts that the packer packs in each step
  int64_t tiles = 0, steps = 1;  // it packs one part more in `tiles` of every `steps` steps
  int64_t credit = 0;
  int64_t rows_per_step = 2;  // rows of a sum that a step stores

  void step() {
    int64_t parts = parts_per_step;
    for (credit += tiles; credit >= steps; credit -= steps) ++parts;
    packer.pack_next(parts);
    for (int64_t row = 0; row < rows_per_step && stored.has_rows(); ++row) stored.store_row(op);
    fetcher.step();
  }
  void store(const StoredSum& sum) {
    while (stored.has_rows()) stored.store_row(op);
    stored = sum;
  }
};

// A strip of a: packed, or where its rows lie. Distances are in units.
struct LeftStrip {
  const Unit* units;
  int64_t row = amx_units, tile = units_of_tile, step = 2 * units_of_tile;
};

// c [32][32] (+)= strips a b, of which the first 16 or all 32 rows and columns are computed.
template <int row_tiles, int col_tiles, typename Packer>
void strip_product(float* c, LeftStrip a, const Unit* b, int64_t steps, bool accumulate, SideWork<Packer>& side) {
  constexpr bool two_rows = row_tiles == 2, two_cols = col_tiles == 2;
  float* const below = c + amx_rows * strip;
  if (accumulate) {
    load_tile<0>(c, strip);
    if constexpr (two_cols) load_tile<1>(c + amx_units, strip);
    if constexpr (two_rows) load_tile<2>(below, strip);
    if constexpr (two_rows && two_cols) load_tile<3>(below + amx_units, strip);
  } else {
    zero_tile<0>();
    if constexpr (two_cols) zero_tile<1>();
    if constexpr (two_rows) zero_tile<2>();
    if constexpr (two_rows && two_cols) zero_tile<3>();
  }
  for (int64_t step = 0; step < steps; ++step, a.units += a.step, b += 2 * units_of_tile) {
    load_tile<4>(a.units, a.row);
    load_tile<6>(b, amx_units);
    multiply_tiles<0, 4, 6>();
    if constexpr (two_cols) {
      load_tile<7>(b + units_of_tile, amx_units);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (two_rows) {
      load_tile<5>(a.units + a.tile, a.row);
      multiply_tiles<2, 5, 6>();
    }
    if constexpr (two_rows && two_cols) multiply_tiles<3, 5, 7>();
    side.step();
  }
  store_tile<0>(c, strip);
  if constexpr (two_cols) store_tile<1>(c + amx_units, strip);
  if constexpr (two_rows) store_tile<2>(below, strip);
  if constexpr (two_rows && two_cols) store_tile<3>(below + amx_units, strip);
}

template <typename Packer>
void strip_product_of(float* c, const LeftStrip& a, const Unit* b, const ProductSizes& sizes, bool accumulate,
                      SideWork<Packer>& side) {
  const int64_t steps = (sizes.depth + tile_depth - 1) / tile_depth;
  const bool two_rows = sizes.rows > amx_rows, two_cols = sizes.cols > amx_units;
  if (two_rows && two_cols) return strip_product<2, 2>(c, a, b, steps, accumulate, side);
  if (two_rows) return strip_product<2, 1>(c, a, b, steps, accumulate, side);
  if (two_cols) return strip_product<1, 2>(c, a, b, steps, accumulate, side);
  strip_product<1, 1>(c, a, b, steps, accumulate, side);
}

// Terms in a chunk of the depth in blocks with few rows, which read a chunk of all columns before the next chunk.
constexpr int64_t short_chunk = 128;

// RETURNS a fetcher, for so many steps, of rows of b behind a chunk: the next chunk or, behind the last, that of the
// next block.
inline RowFetcher fetch_chunk(const TiledLinear& op, const LinearBlock& block, int64_t k, int64_t steps) {
  const auto* const b = static_cast<const bf16*>(op.b) + block.col * op.b_col_stride;
  const int64_t next = k + short_chunk < op.depth ? k + short_chunk : 0;
  const bf16* const from = next > 0 ? b + next * op.b_row_stride : static_cast<const bf16*>(block.next);
  if (from == nullptr || op.b_col_stride != 1) return {};
  return fetch_rows_of(from, op.b_row_stride, smaller(short_chunk, op.depth - next), block.cols, steps);
}

// Rows of a of a block, which are packed for one chunk of the depth while those of the chunk before are multiplied.
struct ChunkRows {
  Lines lines;
  int64_t count, depth;
  Unit* out;  // two chunks
  static constexpr int64_t strip_units = short_chunk / tile_depth * 2 * units_of_tile;

  int64_t strips() const { return (count + strip - 1) / strip; }
  Unit* packed(int64_t chunk, int64_t row_strip) const {
    return out + (chunk % 2 * strips() + row_strip) * strip_units;
  }
  // Packs tiles [first, end) of a chunk. No effect for a chunk behind the last one.
  void pack(int64_t chunk, int64_t first, int64_t end) const {
    const int64_t k = chunk * short_chunk, terms = smaller(short_chunk, depth - k);
    if (terms <= 0) return;
    const int64_t tiles = (terms + tile_depth - 1) / tile_depth * 2;  // tiles of a strip
    for (int64_t tile = first; tile < smaller(end, strips() * tiles); ++tile) {
      const int64_t row_strip = tile / tiles, row = row_strip * strip;
      StripPacker<false>{packed(chunk, row_strip), lines.at(row, k), smaller(strip, count - row), terms, tile % tiles}
          .pack_next(1);
    }
  }
};

// Computes a block of few rows whose b is read once: while a strip of columns is multiplied, the next is packed.
inline void few_rows_of(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers) {
  const Lines lines = Lines{static_cast<const bf16*>(op.a), op.a_row_stride, op.a_col_stride}.at(block.row, 0);
  const Lines columns = Lines{static_cast<const bf16*>(op.b), op.b_col_stride, op.b_row_stride}.at(block.col, 0);
  const ChunkRows rows{lines, block.rows, op.depth, buffers.a};
  const int64_t row_strips = rows.strips(), col_strips = (block.cols + strip - 1) / strip;
  const int64_t chunks = (op.depth + short_chunk - 1) / short_chunk;
  const auto packer = [&](int64_t index) {
    const int64_t k = index / col_strips * short_chunk, col = index % col_strips * strip;
    const int64_t cols = smaller(strip, block.cols - col);
    return ColumnPacker{buffers.b + index % 2 * ChunkRows::strip_units, columns.at(col, k), cols,
                        smaller(short_chunk, op.depth - k), interleaves(op, cols)};
  };
  const int64_t all_tiles = row_strips * (short_chunk / tile_depth) * 2;
  const int64_t share = (all_tiles + col_strips - 1) / col_strips;  // tiles of rows that are packed beside a strip
  SideWork<ColumnPacker> side{.op = op, .packer = packer(0), .stored = {}};
  side.parts_per_step = (amx_units + row_strips - 1) / row_strips;
  rows.pack(0, 0, all_tiles);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t k = chunk * short_chunk, depth = smaller(short_chunk, op.depth - k);
    const int64_t steps = (depth + tile_depth - 1) / tile_depth;
    side.fetcher = fetch_chunk(op, block, k, col_strips * row_strips * steps);
    side.rows_per_step = (strip + steps - 1) / steps;
    for (int64_t c = 0; c < col_strips; ++c) {
      const int64_t index = chunk * col_strips + c;
      rows.pack(chunk + 1, c * share, (c + 1) * share);
      side.packer.pack_rest();
      const ColumnPacker packed = side.packer;
      side.packer = index + 1 < chunks * col_strips ? packer(index + 1) : ColumnPacker{};
      for (int64_t i = 0; i < row_strips; ++i) {
        const int64_t r = c % 2 == 0 ? i : row_strips - 1 - i;  // begins with rows that the first-level cache has
        float* const sum = buffers.sums + (c * row_strips + r) * strip * strip;
        const ProductSizes sizes{smaller(strip, block.rows - r * strip), packed.count, depth};
        strip_product_of(sum, {rows.packed(chunk, r)}, packed.out, sizes, k > 0, side);
        if (chunk + 1 == chunks)
          side.store({sum, block.row + r * strip, block.col + c * strip, sizes.rows, sizes.cols, packed.interleaved});
      }
    }
  }
  side.store({});
}

// RETURNS a fetcher, for so many steps, of weights that a has: the strip after the next or, behind the last, one of the
// next chunk or block.
inline RowFetcher fetch_strip(const TiledLinear& op, const LinearBlock& block, int64_t k, int64_t row_strip,
                              int64_t steps) {
  const bf16* const a = static_cast<const bf16*>(op.a) + block.row * op.a_row_stride;
  const int64_t strips = (block.rows + strip - 1) / strip, chunk = smaller(linear_block_depth, op.depth);
  const int64_t ahead = row_strip + 2;
  if (ahead < strips) {
    return fetch_rows_of(a + ahead * strip * op.a_row_stride + k, op.a_row_stride,
                         smaller(strip, block.rows - ahead * strip), smaller(chunk, op.depth - k), steps);
  }
  const bf16* const behind = k + chunk < op.depth ? a + k + chunk : static_cast<const bf16*>(block.next);
  if (behind == nullptr) return {};
  return fetch_rows_of(behind + (ahead - strips) * strip * op.a_row_stride, op.a_row_stride, strip, chunk, steps);
}

// RETURNS whether tiles can load rows of a where they lie.
inline bool has_tiles_of_rows(const TiledLinear& op, const LinearBlock& block) {
  return op.c_by_columns && op.a_col_stride == 1 && op.a_row_stride % 2 == 0 && op.depth % tile_depth == 0 &&
         block.rows % amx_rows == 0 && reinterpret_cast<uintptr_t>(op.a) % sizeof(Unit) == 0;
}

inline void linear_block_of(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers) {
  if (block.fetches && !op.c_by_columns && block.rows <= linear_few_rows && op.depth > 0)
    return few_rows_of(op, block, buffers);
  const Lines rows = Lines{static_cast<const bf16*>(op.a), op.a_row_stride, op.a_col_stride}.at(block.row, 0);
  const Lines columns = Lines{static_cast<const bf16*>(op.b), op.b_col_stride, op.b_row_stride}.at(block.col, 0);
  const int64_t row_strips = (block.rows + strip - 1) / strip, col_strips = (block.cols + strip - 1) / strip;
  const bool chunks = op.depth > linear_block_depth, in_place = has_tiles_of_rows(op, block);
  for (int64_t k = 0; k == 0 || k < op.depth; k += linear_block_depth) {
    const int64_t depth = smaller(linear_block_depth, op.depth - k);
    const int64_t steps = (depth + tile_depth - 1) / tile_depth, strip_units = steps * 2 * units_of_tile;
    const auto packer = [&](int64_t row_strip) {
      return StripPacker<false>{buffers.a + row_strip % 2 * strip_units, rows.at(row_strip * strip, k),
                                smaller(strip, block.rows - row_strip * strip), depth};
    };
    const auto left = [&](int64_t row_strip) -> LeftStrip {
      if (!in_place) return {buffers.a + row_strip % 2 * strip_units};
      const int64_t stride = op.a_row_stride / 2;
      return {reinterpret_cast<const Unit*>(rows.at(row_strip * strip, k).from), stride, amx_rows * stride, amx_units};
    };
    SideWork<StripPacker<false>> side{.op = op, .packer = packer(0), .stored = {}, .steps = col_strips * steps};
    pack_columns(op, buffers.b, columns.at(0, k), block.cols, depth);
    if (steps > 0) side.rows_per_step = larger(2, (strip + steps - 1) / steps);
    if (!in_place) side.packer.pack_rest();
    for (int64_t r = 0; r < row_strips; ++r) {
      side.tiles = r + 1 < row_strips && !in_place ? 2 * steps : 0;
      if (side.tiles > 0) side.packer = packer(r + 1);
      if (block.fetches && op.c_by_columns) side.fetcher = fetch_strip(op, block, k, r, side.steps);
      for (int64_t c = 0; c < col_strips; ++c) {
        const int64_t index = r * col_strips + c;
        float* const sum = buffers.sums + (chunks ? index : index % 2) * strip * strip;
        const ProductSizes sizes{smaller(strip, block.rows - r * strip), smaller(strip, block.cols - c * strip), depth};
        strip_product_of(sum, left(r), buffers.b + c * strip_units, sizes, k > 0, side);
        if (k + linear_block_depth < op.depth) continue;
        const int64_t row = block.row + r * strip, col = block.col + c * strip;
        side.store(op.c_by_columns ? StoredSum{sum, col, row, sizes.cols, sizes.rows}
                                   : StoredSum{sum, row, col, sizes.rows, sizes.cols, interleaves(op, sizes.cols)});
      }
    }
    side.store({});
  }
#ifdef __AVX512F__
  _mm_sfence();  // streamed sums come before whatever the thread stores next
#endif
}

}  // namespace
}  // namespace gptrain::ops
