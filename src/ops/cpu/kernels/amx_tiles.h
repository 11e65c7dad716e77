// The tiles of AMX: eight registers of 16 rows of 64 bytes, and products of pairs of bfloat16 on them. Only this file
// names the instructions. For kernel tables compiled without AMX it defines a substitute with the same semantics, which
// tests run on any CPU (GPTRAIN_SUBSTITUTED_TILES makes products use it).
//
// Each thread has its own tiles. REQUIRES: outside configure_tiles and release_tiles they are unconfigured, since
// oneDNN configures its own on the same threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/kernels/matrix_kernel_table.h"

namespace gptrain::inline ops {
namespace {

constexpr int64_t amx_rows = 16;   // rows of a tile
constexpr int64_t amx_units = 16;  // 32-bit units in a row

// True if products of pairs run on tiles.
#if defined(__AMX_BF16__) || defined(GPTRAIN_SUBSTITUTED_TILES)
constexpr bool tile_products = true;
#else
constexpr bool tile_products = false;
#endif

#ifdef __AMX_BF16__

// In assembler: GCC 12's intrinsics accept only literal tile numbers, and do not declare that loads read memory, so the
// compiler might move an earlier store behind them.

inline void configure_tiles() {
  struct {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration;
  static_assert(sizeof(configuration) == 64);
  asm volatile("ldtilecfg %0" : : "m"(configuration));
}

inline void release_tiles() { asm volatile("tilerelease" : : : "memory"); }

template <int tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}

// Strides are in units.
template <int tile>
inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride * 4), "i"(tile) : "memory");
}

template <int tile>
inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride * 4), "i"(tile) : "memory");
}

// c [16 rows][16] += a [16 rows][16 units] b [16 units][16 columns].
template <int c, int a, int b>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}

#else

// Substitute for TDPBF16PS, equal to Intel's manual except for the payloads of NaN. For each element it sums over first
// halves of units and over second halves, each in order by fused multiply-adds from zero, and adds their sum to c.
// Rounding is to nearest even; denormal inputs and results are zero.

struct TileRegisters {
  Unit tiles[8][amx_rows][amx_units];
  bool configured;

  void load(int tile, const void* from, int64_t stride) {
    for (int64_t row = 0; row < amx_rows; ++row) {
      std::memcpy(tiles[tile][row], static_cast<const Unit*>(from) + row * stride, amx_units * 4);
    }
  }
  void store(int tile, void* to, int64_t stride) const {
    for (int64_t row = 0; row < amx_rows; ++row) {
      std::memcpy(static_cast<Unit*>(to) + row * stride, tiles[tile][row], amx_units * 4);
    }
  }
  void zero(int tile) { std::memset(tiles[tile], 0, sizeof(tiles[tile])); }
  void multiply(int c, int a, int b);
};

inline float without_denormal(float value) { return __builtin_fabsf(value) < 0x1p-126F ? 0.0F : value; }
inline float first_half(uint32_t unit) { return without_denormal(__builtin_bit_cast(float, unit << 16)); }
inline float second_half(uint32_t unit) { return without_denormal(__builtin_bit_cast(float, unit & 0xffff0000U)); }

inline void TileRegisters::multiply(int c, int a, int b) {
  for (int64_t row = 0; row < amx_rows; ++row) {
    float first[amx_units] = {}, second[amx_units] = {};
    for (int64_t k = 0; k < amx_units; ++k) {
      const float left_first = first_half(tiles[a][row][k]), left_second = second_half(tiles[a][row][k]);
      for (int64_t col = 0; col < amx_units; ++col) {
        const uint32_t right = tiles[b][k][col];
        first[col] = without_denormal(__builtin_fmaf(left_first, first_half(right), first[col]));
        second[col] = without_denormal(__builtin_fmaf(left_second, second_half(right), second[col]));
      }
    }
    for (int64_t col = 0; col < amx_units; ++col) {
      Unit& element = tiles[c][row][col];
      const float before = without_denormal(__builtin_bit_cast(float, uint32_t{element}));
      const float sum = without_denormal(first[col] + second[col]);
      element = __builtin_bit_cast(uint32_t, without_denormal(before + sum));
    }
  }
}

[[maybe_unused]] thread_local TileRegisters tile_registers;

// Stops the program if tiles are not configured, as AMX does. configure_tiles stops it if they were not released.
inline TileRegisters& configured_tiles() {
  if (!tile_registers.configured) __builtin_trap();
  return tile_registers;
}

inline void configure_tiles() {
  if (tile_registers.configured) __builtin_trap();
  tile_registers.configured = true;
}

inline void release_tiles() { tile_registers = {}; }

template <int tile>
inline void zero_tile() {
  configured_tiles().zero(tile);
}

// Strides are in units.
template <int tile>
inline void load_tile(const void* from, int64_t stride) {
  configured_tiles().load(tile, from, stride);
}

template <int tile>
inline void store_tile(void* to, int64_t stride) {
  configured_tiles().store(tile, to, stride);
}

// c [16 rows][16] += a [16 rows][16 units] b [16 units][16 columns].
template <int c, int a, int b>
inline void multiply_tiles() {
  configured_tiles().multiply(c, a, b);
}

#endif

// Configures the thread's tiles while it lives.
class TileScope {
 public:
  TileScope() {
    if constexpr (tile_products) configure_tiles();
  }
  ~TileScope() {
    if constexpr (tile_products) release_tiles();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Rows of units from `units` on, `stride` units apart.
struct UnitRows {
  const Unit* units;
  int64_t stride;
};

// Rows of a product, `stride` floats apart.
struct ProductRows {
  float* values;
  int64_t stride;
};

// Sizes of a product in units: the result has `rows` and `cols`, a sum `depth` terms.
struct ProductSizes {
  int64_t rows, cols, depth;
};

// c, of `row_tiles` x `col_tiles` tiles, (+)= a b, with c in registers during the sum. Two by two tiles need one load
// per product and use all registers: tiles 0 to 3 are c, 4 and 5 a, 6 and 7 b.
template <int row_tiles, int col_tiles>
void product_block(ProductRows c, UnitRows a, UnitRows b, int64_t depth, bool accumulate) {
  float* const below = c.values + amx_rows * c.stride;
  constexpr bool two_rows = row_tiles == 2, two_cols = col_tiles == 2;
  if (accumulate) {
    load_tile<0>(c.values, c.stride);
    if constexpr (two_cols) load_tile<1>(c.values + amx_units, c.stride);
    if constexpr (two_rows) load_tile<2>(below, c.stride);
    if constexpr (two_rows && two_cols) load_tile<3>(below + amx_units, c.stride);
  } else {
    zero_tile<0>();
    if constexpr (two_cols) zero_tile<1>();
    if constexpr (two_rows) zero_tile<2>();
    if constexpr (two_rows && two_cols) zero_tile<3>();
  }
  for (int64_t k = 0; k < depth; k += amx_units) {
    load_tile<4>(a.units + k, a.stride);
    load_tile<6>(b.units + k * b.stride, b.stride);
    multiply_tiles<0, 4, 6>();
    if constexpr (two_cols) {
      load_tile<7>(b.units + k * b.stride + amx_units, b.stride);
      multiply_tiles<1, 4, 7>();
    }
    if constexpr (two_rows) {
      load_tile<5>(a.units + k + amx_rows * a.stride, a.stride);
      multiply_tiles<2, 5, 6>();
    }
    if constexpr (two_rows && two_cols) multiply_tiles<3, 5, 7>();
  }
  store_tile<0>(c.values, c.stride);
  if constexpr (two_cols) store_tile<1>(c.values + amx_units, c.stride);
  if constexpr (two_rows) store_tile<2>(below, c.stride);
  if constexpr (two_rows && two_cols) store_tile<3>(below + amx_units, c.stride);
}

template <int row_tiles>
void product_of_row_tiles(ProductRows c, UnitRows a, UnitRows b, int64_t cols, int64_t depth, bool accumulate) {
  int64_t col = 0;
  const auto block = [&](auto col_tiles) {
    product_block<row_tiles, decltype(col_tiles)::value>({c.values + col, c.stride}, a, {b.units + col, b.stride},
                                                         depth, accumulate);
  };
  for (; col + amx_units < cols; col += 2 * amx_units) block(std::integral_constant<int, 2>());
  if (col < cols) block(std::integral_constant<int, 1>());
}

// c [rows, cols] (+)= a [rows, depth] b [depth, cols], in units. REQUIRES: operands are padded with zeros to multiples
// of 16 of all sizes, and c has memory for its padding. Not inlined: attention calls it from many places, and copies
// are slower.
[[gnu::noinline]] inline void product_of_tiles(ProductRows c, UnitRows a, UnitRows b, const ProductSizes& sizes,
                                               bool accumulate) {
  int64_t row = 0;
  const auto row_tiles = [&](auto count) {
    product_of_row_tiles<decltype(count)::value>({c.values + row * c.stride, c.stride},
                                                 {a.units + row * a.stride, a.stride}, b, sizes.cols, sizes.depth,
                                                 accumulate);
  };
  for (; row + amx_rows < sizes.rows; row += 2 * amx_rows) row_tiles(std::integral_constant<int, 2>());
  if (row < sizes.rows) row_tiles(std::integral_constant<int, 1>());
}

}  // namespace
}  // namespace gptrain::ops
