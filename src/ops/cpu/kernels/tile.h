// Products of small tiles, and the packing that feeds them. Only the files that are compiled once per instruction set
// include this; everything here has internal linkage and no inline function of a library is called, so that no copy is
// shared between instruction sets.
//
// A packed tile consists of 32-bit units along the dimension that a product sums over: one float or, if the CPU
// multiplies pairs of bfloat16 (`pairs`), two neighbours in that dimension. Vector instructions multiply pairs, or AMX
// tiles do (`tile_products`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "base/dtype.h"
#include "ops/cpu/kernels/amx_tiles.h"
#include "ops/cpu/kernels/matrix_kernel_table.h"

namespace gptrain::inline ops {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

using Vec [[gnu::vector_size(lanes * 4)]] = float;
using IntVec [[gnu::vector_size(lanes * 4)]] = int32_t;
using BitsVec [[gnu::vector_size(lanes * 4)]] = uint32_t;
using UnalignedVec [[gnu::vector_size(lanes * 4), gnu::aligned(4), gnu::may_alias]] = float;

inline Vec load(const void* from) { return *static_cast<const UnalignedVec*>(from); }
inline void store(void* to, Vec value) { *static_cast<UnalignedVec*>(to) = value; }
// Subtracts zeros, which leaves nothing to compute: adding them would turn -0 into 0.
inline Vec broadcast(float value) { return value - Vec{}; }

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

inline float as_float(bf16 value) { return __builtin_bit_cast(float, uint32_t{value.bits} << 16); }
inline float as_float(float value) { return value; }
inline void assign(float& to, float value) { to = value; }
inline void assign(bf16& to, float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40U;
  to.bits = static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

// RETURNS acc + a * b; a 32-bit lane of a and b is one float or a pair of bfloat16.
template <bool pairs>
inline Vec multiply_add(Vec a, Vec b, Vec acc) {
#ifdef __AVX512BF16__
  if constexpr (pairs) return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#endif
  return a * b + acc;
}

// A factor of a product: unit k of row i is units[i * row_stride + k * unit_stride]. AMX tiles require a unit_stride of
// 1.
struct LeftOperand {
  const Unit* units;
  int64_t row_stride;
  int64_t unit_stride;
};

// Keeps four rows and `vectors` vectors of columns in registers during the sum.
template <bool pairs, int vectors>
void product_strip(ProductRows c, LeftOperand a, UnitRows b, int64_t rows, int64_t depth, bool accumulate) {
  for (int64_t row = 0; row < rows; row += product_rows) {
    Vec acc[product_rows][vectors];
    for (int r = 0; r < product_rows; ++r) {
      for (int n = 0; n < vectors; ++n) {
        acc[r][n] = accumulate ? load(c.values + (row + r) * c.stride + n * lanes) : Vec{};
      }
    }
    const Unit* left = a.units + row * a.row_stride;
    const Unit* right = b.units;
    for (int64_t k = 0; k < depth; ++k) {
      Vec columns[vectors];
      for (int n = 0; n < vectors; ++n) columns[n] = load(right + n * lanes);
      for (int r = 0; r < product_rows; ++r) {
        const Vec factor = broadcast(__builtin_bit_cast(float, left[r * a.row_stride]));
        for (int n = 0; n < vectors; ++n) acc[r][n] = multiply_add<pairs>(factor, columns[n], acc[r][n]);
      }
      left += a.unit_stride;
      right += b.stride;
    }
    for (int r = 0; r < product_rows; ++r) {
      for (int n = 0; n < vectors; ++n) store(c.values + (row + r) * c.stride + n * lanes, acc[r][n]);
    }
  }
}

// c [rows, cols] (+)= a [rows, depth] b [depth, cols], in units. REQUIRES: rows is a multiple of product_rows, cols of
// 16; operands are padded with zeros to multiples of 16 of all sizes, and c has memory for its padding.
template <bool pairs>
void product(ProductRows c, const LeftOperand& a, UnitRows b, const ProductSizes& sizes, bool accumulate) {
  if constexpr (pairs && tile_products) {
    product_of_tiles(c, {a.units, a.row_stride}, b, sizes, accumulate);
    return;
  }
  constexpr int widest = lanes == 16 ? 4 : 2;
  int64_t col = 0;
  const auto strip = [&](auto vectors) {
    product_strip<pairs, decltype(vectors)::value>({c.values + col, c.stride}, a, {b.units + col, b.stride}, sizes.rows,
                                                   sizes.depth, accumulate);
  };
  for (; col + widest * lanes <= sizes.cols; col += widest * lanes) strip(std::integral_constant<int, widest>());
  if (widest > 2 && col + 2 * lanes <= sizes.cols) {
    strip(std::integral_constant<int, 2>());
    col += 2 * lanes;
  }
  for (; col < sizes.cols; col += lanes) strip(std::integral_constant<int, 1>());
}

// Copies a short row without calling a function.
inline void copy_row(std::byte* to, const std::byte* from, int64_t bytes) {
  constexpr int64_t line = 64;
  for (; bytes >= line; bytes -= line, to += line, from += line) std::memcpy(to, from, line);
  for (int64_t i = 0; i < bytes; ++i) to[i] = from[i];
}

// Packs a row of a matrix as `width` units along the columns, with zeros past the last column.
template <bool pairs, typename T>
void pack_row(Unit* to, int64_t width, const T* values, int64_t cols) {
  if constexpr (pairs || sizeof(T) == sizeof(float)) {
    const int64_t bytes = cols * static_cast<int64_t>(sizeof(T));
    std::byte* const start = reinterpret_cast<std::byte*>(to);
    copy_row(start, reinterpret_cast<const std::byte*>(values), bytes);
    for (int64_t i = bytes; i < width * 4; ++i) start[i] = std::byte{};
  } else {
    for (int64_t col = 0; col < cols; ++col) to[col] = __builtin_bit_cast(uint32_t, as_float(values[col]));
    for (int64_t col = cols; col < width; ++col) to[col] = 0;
  }
}

// Packs rows of a matrix, [tile_size][width], with zeros past the last row.
template <bool pairs, typename T>
void pack_rows(Unit* out, int64_t width, const T* from, int64_t from_stride, int64_t rows, int64_t cols) {
  for (int64_t row = 0; row < rows; ++row) pack_row<pairs>(out + row * width, width, from + row * from_stride, cols);
  if (rows < tile_size) std::memset(out + rows * width, 0, (tile_size - rows) * width * 4);
}

#ifdef __AVX512BW__
// to[col] = the pair of two rows' values. REQUIRES: cols is a multiple of 32.
inline void pair_rows(Unit* to, const bf16* even, const bf16* odd, int64_t cols) {
  using Halves [[gnu::vector_size(64)]] = uint16_t;
  Halves low, high;
  for (int i = 0; i < 32; ++i) {
    low[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    high[i] = static_cast<uint16_t>(low[i] + 16);
  }
  const auto half = [](const bf16* at) { return reinterpret_cast<Halves>(load(at)); };
  for (int64_t col = 0; col < cols; col += 32) {
    const Halves first = half(even + col), second = half(odd + col);
    store(to + col, reinterpret_cast<Vec>(__builtin_shuffle(first, second, low)));
    store(to + col + 16, reinterpret_cast<Vec>(__builtin_shuffle(first, second, high)));
  }
}
#endif

// Packs a matrix of bfloat16 as pairs of neighbouring rows, [tile_size / 2][stride], with zeros past the last row and
// column.
inline void pack_row_pairs(Unit* out, int64_t stride, const bf16* from, int64_t from_stride, int64_t rows,
                           int64_t cols) {
  int64_t row = 0;
#ifdef __AVX512BW__
  for (; cols % 32 == 0 && row + 1 < rows; row += 2) {
    Unit* const to = out + row / 2 * stride;
    pair_rows(to, from + row * from_stride, from + (row + 1) * from_stride, cols);
    for (int64_t col = cols; col < stride; ++col) to[col] = 0;
  }
#endif
  for (; row < tile_size; row += 2) {
    Unit* const to = out + row / 2 * stride;
    const bf16* const even = from + row * from_stride;
    if (row + 1 < rows) {
      const bf16* const odd = even + from_stride;
      for (int64_t col = 0; col < cols; ++col) to[col] = even[col].bits | (uint32_t{odd[col].bits} << 16);
    } else if (row < rows) {
      for (int64_t col = 0; col < cols; ++col) to[col] = even[col].bits;
    }
    const int64_t first_zero = row < rows ? cols : 0;
    std::memset(to + first_zero, 0, (stride - first_zero) * 4);
  }
}

// Fetches rows of a matrix into the second-level cache, some lines a step.
struct RowFetcher {
  const std::byte* at = nullptr;
  int64_t gap = 0;              // bytes between rows
  int64_t width = 0, left = 0;  // bytes of a row, and those of this row that are left
  int64_t rows = 0;             // rows that are left
  int64_t lines_per_step = 0;

  void step() {
    for (int64_t i = 0; i < lines_per_step && rows > 0; ++i) fetch();
  }

 private:
  void fetch() {
    constexpr int64_t line = 64;
    __builtin_prefetch(at, 0, 2);
    at += line;
    left -= line;
    if (left > 0) return;
    at += left + gap;
    left = width;
    --rows;
  }
};

// RETURNS a fetcher that is done after so many steps.
template <typename T>
RowFetcher fetch_rows_of(const T* from, int64_t stride, int64_t rows, int64_t cols, int64_t steps) {
  constexpr int64_t line = 64, size = static_cast<int64_t>(sizeof(T));
  const int64_t width = cols * size, lines = rows * ((width + line - 1) / line);
  return {reinterpret_cast<const std::byte*>(from),
          (stride - cols) * size,
          width,
          width,
          rows,
          (lines + steps - 1) / steps};
}

// rows[j][i] = rows[i][j]. Each round interleaves row i with row i + lanes / 2.
inline void transpose_in_registers(Vec (&rows)[lanes]) {
  IntVec low, high;
  for (int i = 0; i < lanes; ++i) {
    low[i] = i / 2 + i % 2 * lanes;
    high[i] = low[i] + lanes / 2;
  }
  Vec mixed[lanes];
  for (int round = 1; round < lanes; round *= 2) {
    for (int i = 0; i < lanes / 2; ++i) {
      mixed[2 * i] = __builtin_shuffle(rows[i], rows[i + lanes / 2], low);
      mixed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + lanes / 2], high);
    }
    for (int i = 0; i < lanes; ++i) rows[i] = mixed[i];
  }
}

// out[j][i] = in[i][j] for a block of lanes x lanes units.
inline void transpose_block(Unit* out, int64_t out_stride, const Unit* in, int64_t in_stride) {
  Vec rows[lanes];
  for (int i = 0; i < lanes; ++i) rows[i] = load(in + i * in_stride);
  transpose_in_registers(rows);
  for (int i = 0; i < lanes; ++i) store(out + i * out_stride, rows[i]);
}

// out [cols][rows] from in [rows][cols], both multiples of 16.
inline void transpose(Unit* out, int64_t out_stride, const Unit* in, int64_t in_stride, int64_t rows, int64_t cols) {
  for (int64_t col = 0; col < cols; col += lanes) {
    for (int64_t row = 0; row < rows; row += lanes) {
      transpose_block(out + col * out_stride + row, out_stride, in + row * in_stride + col, in_stride);
    }
  }
}

// Unit i holds low[i] and high[i], rounded to bfloat16.
inline Vec pair_lanes(Vec low, Vec high) {
#ifdef __AVX512BF16__
  using Words [[gnu::vector_size(64)]] = uint16_t;
  Words interleaved;
  for (int i = 0; i < 2 * lanes; ++i) interleaved[i] = static_cast<uint16_t>(i / 2 + i % 2 * lanes);
  const auto words = reinterpret_cast<Words>(_mm512_cvtne2ps_pbh(high, low));
  return reinterpret_cast<Vec>(__builtin_shuffle(words, interleaved));
#else
  const auto rounded = [](Vec value) {
    const auto bits = reinterpret_cast<BitsVec>(value);
    return value == value ? bits + 0x7fffU + ((bits >> 16) & 1U) : bits | 0x400000U;
  };
  return reinterpret_cast<Vec>((rounded(low) >> 16) | (rounded(high) & 0xffff0000U));
#endif
}

// The elements of `first`, then those of `second`: each unit holds two neighbours, rounded to bfloat16.
inline Vec pair_neighbours(Vec first, Vec second) {
#ifdef __AVX512BF16__
  return reinterpret_cast<Vec>(_mm512_cvtne2ps_pbh(second, first));
#else
  IntVec even;
  for (int i = 0; i < lanes; ++i) even[i] = 2 * i;
  return pair_lanes(__builtin_shuffle(first, second, even), __builtin_shuffle(first, second, even + 1));
#endif
}

// Store lanes, rounded as assign does.
inline void store_lanes(float* to, Vec values) { store(to, values); }
inline void store_lanes(bf16* to, Vec values) {
  using Halves [[gnu::vector_size(lanes * 2)]] = uint16_t;
  const auto bits = reinterpret_cast<BitsVec>(values);
  const BitsVec rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const auto halves = __builtin_convertvector((values == values ? rounded : bits | 0x400000U) >> 16, Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

// to [rows, cols] = from * scale, rounded to T.
template <typename T>
void store_rows(T* to, int64_t to_stride, const float* from, int64_t from_stride, int64_t rows, int64_t cols,
                float scale) {
  for (int64_t row = 0; row < rows; ++row) {
    int64_t col = 0;
    for (; col + lanes <= cols; col += lanes)
      store_lanes(to + row * to_stride + col, load(from + row * from_stride + col) * scale);
    for (; col < cols; ++col) assign(to[row * to_stride + col], from[row * from_stride + col] * scale);
  }
}

// ln(x) within 2e-7 of max(1, |ln(x)|). REQUIRES: x is finite, and no denormal or negative number.
inline Vec log(Vec x) {
  constexpr int32_t half_root = 0x3f3504f3;  // sqrt(1/2)
  const auto bits = reinterpret_cast<IntVec>(x);
  const IntVec exponent = (bits - half_root) >> 23;
  const Vec f = reinterpret_cast<Vec>(bits - (exponent << 23)) - 1.0F;
  // ln((1 + s) / (1 - s)) with s = f / (2 + f), |s| < 0.1716: the first terms of its series.
  const Vec s = f / (f + 2.0F), square = s * s;
  Vec p = broadcast(2.0F / 9);
  p = p * square + 2.0F / 7;
  p = p * square + 2.0F / 5;
  p = p * square + 2.0F / 3;
  const Vec whole = __builtin_convertvector(exponent, Vec);
  return whole * 0.693359375F + (whole * -2.12194440e-4F + (s * square * p + 2.0F * s));
}

// 2^x within 2e-7 relative for x <= 127; 0 below -126; NaN stays NaN.
inline Vec exp2(Vec x) {
  constexpr float round_to_integer = 12582912.0F;  // 1.5 * 2^23: adding it leaves no bits for a fraction
  const Vec whole = (x + round_to_integer) - round_to_integer;
  const Vec f = x - whole;
  // Minimax polynomial of 2^f on [-1/2, 1/2].
  Vec p = broadcast(0.000154614449F);
  p = p * f + 0.0013400428F;
  p = p * f + 0.00961805694F;
  p = p * f + 0.0555032715F;
  p = p * f + 0.240226507F;
  p = p * f + 0.693147182F;
  p = p * f + 1.0F;
#ifdef __AVX512F__
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, broadcast(-126.0F), _CMP_NLT_UQ), p, whole);
#else
  const IntVec exponent = (__builtin_convertvector(whole, IntVec) + 127) << 23;
  const Vec scaled = p * reinterpret_cast<Vec>(exponent);
  return x < -126.0F ? Vec{} : scaled;
#endif
}

}  // namespace
}  // namespace gptrain::ops
