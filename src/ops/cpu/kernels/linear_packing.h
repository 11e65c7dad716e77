// Packing of operands of bfloat16 for products on AMX tiles (linear_blocks.h): strips of 32 rows of a or columns of b,
// as two neighbouring tiles for each step along the depth.
#pragma once

#include "ops/cpu/kernels/attention_packing.h"
#include "ops/cpu/kernels/tile.h"

namespace gptrain::inline ops {
namespace {

constexpr int64_t tile_depth = 2 * amx_units;  // elements of the depth in a tile
constexpr int64_t units_of_tile = amx_rows * amx_units;
constexpr int64_t strip = linear_block_strip;
static_assert(strip == 2 * amx_rows);

// Lines of an operand: rows of a or columns of b. Element k of line i lies at from[i * line_stride + k * depth_stride].
// One of the two strides is 1.
struct Lines {
  const bf16* from;
  int64_t line_stride, depth_stride;

  Lines at(int64_t line, int64_t depth) const {
    return {from + line * line_stride + depth * depth_stride, line_stride, depth_stride};
  }
};

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

// Packs a tile of `count` <= 16 lines and `depth` <= 32 elements, with zeros for the rest.
template <bool by_unit>
void pack_part_by_vectors(Unit* out, const Lines& lines, int64_t count, int64_t depth) {
  const auto first = [](int64_t number) { return static_cast<__mmask32>((uint64_t{1} << number) - 1); };
  Vec units[lanes];
  if (lines.depth_stride == 1) {
    for (int i = 0; i < lanes; ++i) {
      const bf16* const line = lines.from + i * lines.line_stride;
      units[i] = i < count ? reinterpret_cast<Vec>(_mm512_maskz_loadu_epi16(first(depth), line)) : Vec{};
    }
    if constexpr (by_unit) transpose_in_registers(units);
  } else {
    const auto halves = [&](int64_t k) {
      if (k >= depth) return BitsVec{};
      const auto mask = static_cast<__mmask16>(first(count));
      using Halves [[gnu::vector_size(lanes * 2)]] = uint16_t;
      const auto values = _mm256_maskz_loadu_epi16(mask, lines.from + k * lines.depth_stride);
      return __builtin_convertvector(reinterpret_cast<Halves>(values), BitsVec);
    };
    for (int i = 0; i < lanes; ++i) units[i] = reinterpret_cast<Vec>(halves(2 * i) | halves(2 * i + 1) << 16);
    if constexpr (!by_unit) transpose_in_registers(units);
  }
  for (int i = 0; i < lanes; ++i) store(out + i * amx_units, units[i]);
}

#else

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

#endif

template <bool by_unit>
void pack_any_tile(Unit* out, const Lines& lines, int64_t count, int64_t depth) {
#ifdef __AVX512F__
  if (count == amx_rows && depth == tile_depth) return pack_tile<by_unit>(out, lines);
  pack_part_by_vectors<by_unit>(out, lines, count, depth);
#else
  pack_part_of_tile<by_unit>(out, lines, count, depth);
#endif
}

// Packs a strip of up to 32 lines tile by tile: the two tiles of a step along the depth, then those of the next step.
template <bool by_unit>
struct StripPacker {
  Unit* out;
  Lines lines;
  int64_t count, depth;
  int64_t tile = 0;  // the next one

  void pack_next(int64_t number) {
    for (int64_t i = 0; i < number; ++i) pack_tile_of_strip();
  }
  void pack_rest() { pack_next((depth + tile_depth - 1) / tile_depth * 2 - tile); }

 private:
  void pack_tile_of_strip() {
    const int64_t line = tile % 2 * amx_rows, k = tile / 2 * tile_depth;
    if (line < count) {
      pack_any_tile<by_unit>(out + tile * units_of_tile, lines.at(line, k), smaller(count - line, amx_rows),
                             smaller(tile_depth, depth - k));
    }
    ++tile;
  }
};

#ifdef __AVX512BF16__
constexpr bool interleaved_columns = true;

// Makes pairs of two rows of 32 elements. `low` gets the first four of every eight columns, `high` the others: words
// change places within 16 bytes only, which takes one instruction for 16 pairs instead of four.
inline void interleave_pairs(Vec even, Vec odd, Unit* low, Unit* high) {
  const auto first = reinterpret_cast<__m512i>(even), second = reinterpret_cast<__m512i>(odd);
  store(low, reinterpret_cast<Vec>(_mm512_unpacklo_epi16(first, second)));
  store(high, reinterpret_cast<Vec>(_mm512_unpackhi_epi16(first, second)));
}

// Brings sums of 32 columns that were packed by interleave_pairs into the order of columns.
inline void restore_order(Vec& left, Vec& right) {
  IntVec first, second;
  for (int i = 0; i < lanes; ++i) {
    first[i] = i / 8 * 4 + i % 4 + i / 4 % 2 * lanes;
    second[i] = first[i] + lanes / 2;
  }
  const Vec low = left, high = right;
  left = __builtin_shuffle(low, high, first);
  right = __builtin_shuffle(low, high, second);
}
#else
constexpr bool interleaved_columns = false;
#endif

// RETURNS whether packed columns of b are interleaved: whole strips whose rows are contiguous.
inline bool interleaves(const TiledLinear& op, int64_t cols) {
  return interleaved_columns && op.b_row_stride != 1 && !op.c_by_columns && cols == strip;
}

// Packs a strip of up to 32 columns as two neighbouring tiles for each step along the depth, some pairs of terms at a
// time.
struct ColumnPacker {
  Unit* out = nullptr;
  Lines columns = {};
  int64_t count = 0, depth = 0;
  bool interleaved = false;
  int64_t pair = 0;  // the next one

  int64_t pairs() const { return round_up(depth, tile_depth) / 2; }

  void pack_next(int64_t number) {
    const int64_t end = smaller(pair + number, pairs());
#ifdef __AVX512BF16__
    if (interleaved) return pack_pairs(end);
#endif
    for (; pair < end; ++pair) {
      if (pair % amx_units == 0) pack_step();
    }
  }
  void pack_rest() { pack_next(pairs()); }

 private:
  Unit* place() const { return out + pair / amx_units * 2 * units_of_tile + pair % amx_units * amx_units; }
  void pack_step() {
    const int64_t k = 2 * pair, terms = smaller(tile_depth, depth - k);
    pack_any_tile<true>(place(), columns.at(0, k), smaller(count, amx_rows), terms);
    if (count > amx_rows) {
      pack_any_tile<true>(place() + units_of_tile, columns.at(amx_rows, k), count - amx_rows, terms);
    }
  }
#ifdef __AVX512BF16__
  void pack_pairs(int64_t end) {
    constexpr int64_t at_once = 4;
    const int64_t stride = columns.depth_stride, whole = smaller(end, depth / 2);
    while (pair < end) {
      Unit* to = place();
      const bf16* from = columns.from + 2 * pair * stride;
      if (pair % at_once == 0 && pair + at_once <= whole) {
        for (int64_t i = 0; i < at_once; ++i, to += amx_units, from += 2 * stride)
          interleave_pairs(load(from), load(from + stride), to, to + units_of_tile);
        pair += at_once;
      } else {
        const Vec even = 2 * pair < depth ? load(from) : Vec{};
        const Vec odd = 2 * pair + 1 < depth ? load(from + stride) : Vec{};
        interleave_pairs(even, odd, to, to + units_of_tile);
        ++pair;
      }
    }
  }
#endif
};

// Packs all columns of a block, in the order of memory if rows of b are contiguous.
inline void pack_columns(const TiledLinear& op, Unit* out, const Lines& columns, int64_t count, int64_t depth) {
  const int64_t steps = (depth + tile_depth - 1) / tile_depth;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t col = 0; col < count; col += strip) {
      const int64_t cols = smaller(strip, count - col);
      ColumnPacker{out + col * steps * units_of_tile / amx_units,
                   columns.at(col, 0),
                   cols,
                   depth,
                   interleaves(op, cols),
                   step * amx_units}
          .pack_next(amx_units);
    }
  }
}

}  // namespace
}  // namespace gptrain::ops
