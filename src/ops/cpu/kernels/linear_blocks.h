// Products of large matrices of bfloat16 on AMX tiles. In a block of the result, columns of b are packed once for each
// chunk of the depth, and rows of a by strips of 32. Tiles are packed in the order in which the products read them.
//
// While the tiles multiply a strip, the vector units pack the next one and store sums: work of both kinds alternates in
// the program so that the processor, which looks ahead by several hundred instructions, runs it at once.
//
// Each element sums the depth in chunks of linear_block_depth in order, so its bits depend neither on the blocks nor on
// the number of threads.
#pragma once

#include "ops/cpu/kernels/attention_packing.h"
#include "ops/cpu/kernels/tile.h"

namespace gptrain::inline ops {
namespace {

constexpr int64_t tile_depth = 2 * amx_units;  // elements of the depth in a tile
constexpr int64_t units_of_tile = amx_rows * amx_units;
constexpr int64_t strip = linear_block_strip;
static_assert(strip == 2 * amx_rows);

// Lines of an operand: rows of a or columns of b. Element k of line i lies at from[i * line_stride + k * depth_stride],
// one of which strides is 1.
struct Lines {
  const bf16* from;
  int64_t line_stride, depth_stride;

  Lines at(int64_t line, int64_t depth) const {
    return {from + line * line_stride + depth * depth_stride, line_stride, depth_stride};
  }
};

// Packs a tile of `count` <= 16 lines and `depth` <= 32 elements, with zeros for the rest. A line becomes a row of the
// tile or, with `by_unit`, a column, as tile products require of a and of b.
template <bool by_unit>
void pack_part_of_tile(Unit* out, const Lines& lines, int64_t count, int64_t depth) {
  for (int64_t i = 0; i < amx_rows; ++i) {
    for (int64_t unit = 0; unit < amx_units; ++unit) {
      const auto bits = [&](int64_t k) -> uint32_t {
        return i < count && k < depth ? lines.from[i * lines.line_stride + k * lines.depth_stride].bits : 0;
      };
      out[by_unit ? unit * amx_units + i : i * amx_units + unit] = bits(2 * unit) | (bits(2 * unit + 1) << 16);
    }
  }
}

#ifdef __AVX512F__

// Sixteen elements of bfloat16, each in the lower half of a unit.
inline BitsVec load_halves(const bf16* from) {
  using Halves [[gnu::vector_size(lanes * 2), gnu::aligned(2), gnu::may_alias]] = uint16_t;
  return __builtin_convertvector(*reinterpret_cast<const Halves*>(from), BitsVec);
}

// Packs a whole tile, and fetches a part of the lines that a later call reads.
template <bool by_unit>
void pack_tile(Unit* out, const Lines& lines) {
  Vec units[lanes];
  if (lines.depth_stride == 1) {
    for (int i = 0; i < lanes; ++i) {
      const bf16* const line = lines.from + i * lines.line_stride;
      units[i] = load(line);
      __builtin_prefetch(line + 2 * tile_depth);
    }
    if constexpr (by_unit) transpose_in_registers(units);
  } else {
    for (int i = 0; i < lanes; ++i) {
      const bf16* const even = lines.from + 2 * i * lines.depth_stride;
      const bf16* const odd = even + lines.depth_stride;
      units[i] = reinterpret_cast<Vec>(load_halves(even) | load_halves(odd) << 16);
      __builtin_prefetch(even + tile_depth * lines.depth_stride);
      __builtin_prefetch(odd + tile_depth * lines.depth_stride);
    }
    if constexpr (!by_unit) transpose_in_registers(units);
  }
  for (int i = 0; i < lanes; ++i) store(out + i * amx_units, units[i]);
}

#endif

template <bool by_unit>
void pack_any_tile(Unit* out, const Lines& lines, int64_t count, int64_t depth) {
#ifdef __AVX512F__
  if (count == amx_rows && depth == tile_depth) return pack_tile<by_unit>(out, lines);
#endif
  pack_part_of_tile<by_unit>(out, lines, count, depth);
}

// Packs a strip of up to 32 lines tile by tile: the two tiles of a step along the depth, then those of the next step.
template <bool by_unit>
struct StripPacker {
  Unit* out;
  Lines lines;
  int64_t count, depth;
  int64_t tile = 0;  // the next one

  void pack_next() {
    const int64_t line = tile % 2 * amx_rows, k = tile / 2 * tile_depth;
    if (line < count) {
      pack_any_tile<by_unit>(out + tile * units_of_tile, lines.at(line, k), smaller(count - line, amx_rows),
                             smaller(tile_depth, depth - k));
    }
    ++tile;
  }
};

// A sum [32][32] that is stored row by row, with the op's bias and, if the op accumulates, added to c.
struct StoredSum {
  const float* sum = nullptr;
  int64_t row = 0, col = 0, rows = 0, cols = 0;  // its place in c
  int64_t next = 0;                              // row of the sum

  bool has_rows() const { return next < rows; }

  void store_row(const TiledLinear& op) {
    const float* const from = sum + next * strip;
    const int64_t at = (row + next) * op.c_stride + col;
    ++next;
    const bf16* const bias = op.bias == nullptr ? nullptr : static_cast<const bf16*>(op.bias) + col;
#ifdef __AVX512BF16__
    if (cols == strip) return store_whole_row(op, from, at, bias);
#endif
    for (int64_t i = 0; i < cols; ++i) {
      const float value = from[i] + (bias == nullptr ? 0.0F : as_float(bias[i]));
      if (op.c_dtype == DType::bf16) {
        assign(static_cast<bf16*>(op.c)[at + i], value);
      } else {
        float& to = static_cast<float*>(op.c)[at + i];
        to = op.accumulate ? to + value : value;
      }
    }
  }

#ifdef __AVX512BF16__
  static void store_whole_row(const TiledLinear& op, const float* from, int64_t at, const bf16* bias) {
    Vec left = load(from), right = load(from + lanes);
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

// Work of the vector units beside the products of tiles, in shares of a step: the next strip of a is packed, and a sum
// is stored.
struct SideWork {
  const TiledLinear& op;
  StripPacker<false> packer;
  StoredSum stored;
  int64_t tiles = 0, steps = 1;  // tiles that are packed in so many steps
  int64_t credit = 0;

  void step() {
    for (credit += tiles; credit >= steps; credit -= steps) packer.pack_next();
    for (int row = 0; row < 2 && stored.has_rows(); ++row) stored.store_row(op);
  }
  void store(const StoredSum& sum) {
    while (stored.has_rows()) stored.store_row(op);
    stored = sum;
  }
};

// c [32][32] (+)= strips a b, of which the first 16 or all 32 rows and columns are computed.
template <int row_tiles, int col_tiles>
void strip_product(float* c, const Unit* a, const Unit* b, int64_t steps, bool accumulate, SideWork& side) {
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
  for (int64_t step = 0; step < steps; ++step, a += 2 * units_of_tile, b += 2 * units_of_tile) {
    load_tile<4>(a, amx_units);
    load_tile<6>(b, amx_units);
    multiply_tiles<0, 4, 6>();
    if constexpr (two_cols) {
      load_tile<7>(b + units_of_tile, amx_units);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (two_rows) {
      load_tile<5>(a + units_of_tile, amx_units);
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

inline void strip_product_of(float* c, const Unit* a, const Unit* b, const ProductSizes& sizes, bool accumulate,
                             SideWork& side) {
  const int64_t steps = (sizes.depth + tile_depth - 1) / tile_depth;
  const bool two_rows = sizes.rows > amx_rows, two_cols = sizes.cols > amx_units;
  if (two_rows && two_cols) return strip_product<2, 2>(c, a, b, steps, accumulate, side);
  if (two_rows) return strip_product<2, 1>(c, a, b, steps, accumulate, side);
  if (two_cols) return strip_product<1, 2>(c, a, b, steps, accumulate, side);
  strip_product<1, 1>(c, a, b, steps, accumulate, side);
}

// Packs all columns of a block, in the order of memory if rows of b are contiguous.
inline void pack_columns(Unit* out, const Lines& columns, int64_t count, int64_t depth, int64_t strip_units) {
  const int64_t tiles = strip_units / units_of_tile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t col = 0; col < count; col += strip) {
      StripPacker<true>{out + col / strip * strip_units, columns.at(col, 0), smaller(strip, count - col), depth, tile}
          .pack_next();
    }
  }
}

inline void linear_block_of(const TiledLinear& op, const LinearBlock& block, const LinearBlockBuffers& buffers) {
  const Lines rows = Lines{static_cast<const bf16*>(op.a), op.a_row_stride, op.a_col_stride}.at(block.row, 0);
  const Lines columns = Lines{static_cast<const bf16*>(op.b), op.b_col_stride, op.b_row_stride}.at(block.col, 0);
  const int64_t row_strips = (block.rows + strip - 1) / strip, col_strips = (block.cols + strip - 1) / strip;
  const bool chunks = op.depth > linear_block_depth;
  for (int64_t k = 0; k == 0 || k < op.depth; k += linear_block_depth) {
    const int64_t depth = smaller(linear_block_depth, op.depth - k);
    const int64_t steps = (depth + tile_depth - 1) / tile_depth, strip_units = steps * 2 * units_of_tile;
    const auto packer = [&](int64_t row_strip) {
      return StripPacker<false>{buffers.a + row_strip % 2 * strip_units, rows.at(row_strip * strip, k),
                                smaller(strip, block.rows - row_strip * strip), depth};
    };
    pack_columns(buffers.b, columns.at(0, k), block.cols, depth, strip_units);
    SideWork side{.op = op, .packer = packer(0), .stored = {}, .steps = col_strips * steps};
    while (side.packer.tile < 2 * steps) side.packer.pack_next();
    for (int64_t r = 0; r < row_strips; ++r) {
      const StripPacker current = packer(r);
      side.tiles = r + 1 < row_strips ? 2 * steps : 0;
      if (side.tiles > 0) side.packer = packer(r + 1);
      for (int64_t c = 0; c < col_strips; ++c) {
        const int64_t index = r * col_strips + c;
        float* const sum = buffers.sums + (chunks ? index : index % 2) * strip * strip;
        const ProductSizes sizes{current.count, smaller(strip, block.cols - c * strip), depth};
        strip_product_of(sum, current.out, buffers.b + c * strip_units, sizes, k > 0, side);
        if (k + linear_block_depth >= op.depth) {
          side.store({sum, block.row + r * strip, block.col + c * strip, sizes.rows, sizes.cols});
        }
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
