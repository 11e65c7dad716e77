// Packing of a head's tiles of queries and keys. Included only by the kernels of attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/cpu/kernels/tile.h"

namespace gptrain::inline ops {
namespace {

// The shape of packed tiles.
template <bool pairs>
struct Packing {
  // Rows and columns of blocks of hidden scores that products leave out: tiles multiply two by two.
  static constexpr int strip_size = pairs && tile_products ? 32 : 16;

  explicit Packing(int64_t head_size_)
      : head_size(head_size_),
        width(packed_width(head_size_)),
        cols(round_up(head_size_, 16)),
        row_units(pairs ? width / 2 : width),
        depth(pairs ? (head_size_ + 1) / 2 : head_size_),
        tile(tile_size * width) {}
  // RETURNS the units of a sum over `count` tokens.
  static int64_t token_units(int64_t count) { return pairs ? (count + 1) / 2 : count; }
  // RETURNS the elements of type T that fill a row that is summed over its columns.
  template <typename T>
  int64_t row_elements() const {
    return row_units * 4 / static_cast<int64_t>(sizeof(T));
  }

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

template <bool pairs>
void pack_transposed(Unit* out, const Packing<pairs>& packing, const Unit* rows) {
  transpose(out, tile_size, rows, packing.row_units, tile_size, round_up(packing.depth, 16));
}

// Packs a tile twice. First its rows, for sums over columns. Then its columns as rows of pairs, [width][tile_size / 2]:
// the left factor of AMX tiles in sums over rows. `buffer` has room for one tile.
template <bool pairs>
void pack_for_tiles(Unit* out, Unit* buffer, const Packing<pairs>& packing, const bf16* from, int64_t from_stride,
                    int64_t rows) {
  pack_rows<pairs>(out, packing.row_units, from, from_stride, rows, packing.head_size);
  pack_row_pairs(buffer, packing.width, from, from_stride, rows, packing.head_size);
  transpose(out + packing.tile / 2, tile_size / 2, buffer, packing.width, tile_size / 2, packing.width);
}

// Packs pairs of rows of a tile that is packed by rows. REQUIRES: pairs.
template <bool pairs>
void pack_pairs_of(Unit* out, const Packing<pairs>& packing, const Unit* rows) {
  pack_row_pairs(out, packing.width, reinterpret_cast<const bf16*>(rows), 2 * packing.row_units, tile_size,
                 packing.head_size);
}

// Packs, behind a tile that is packed by rows, the same for sums over the rows, as pack_both does. For AMX tiles, which
// multiply scores by key, packs its columns instead of its rows. `buffer` has room for a tile.
template <bool pairs>
void pack_behind(Unit* tile, Unit* buffer, const Packing<pairs>& packing) {
  if constexpr (!pairs) return;
  pack_pairs_of(tile + packing.tile / 2, packing, tile);
  if constexpr (!tile_products) return;
  pack_transposed(buffer, packing, tile);
  std::memcpy(tile, buffer, packing.tile / 2 * 4);
}

}  // namespace
}  // namespace gptrain::ops
