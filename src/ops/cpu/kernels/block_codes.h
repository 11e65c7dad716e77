// Encodes and decodes 8-bit state (base/dynamic_map.h), a block at a time. Included only by sources that are compiled
// once per instruction set; everything has internal linkage.
//
// The tables give the codes and the bits of a GPU's kernels. With vectors the magnitudes are computed: within a decade
// the magnitude is a linear function of its number, whose coefficients come from tables of eight decades. Every AVX-512
// instruction costs about 0.1 ns per 16 elements, so speed comes from using few instructions.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "base/dynamic_map.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

#ifdef __AVX2__

#ifdef __AVX512F__
constexpr int code_lanes = 16;
// Mask for the masked forms of intrinsics: GCC 12 warns of an uninitialized value in the forms without.
constexpr __mmask16 all_lanes = 0xffff;
constexpr int and_or = 0xea;         // operation on three operands: (a & b) | c
constexpr int larger_size = 0b1011;  // operation on two operands: the larger magnitude
#else
constexpr int code_lanes = 8;
using CodeFloats [[gnu::vector_size(4 * code_lanes)]] = float;
using CodeInts [[gnu::vector_size(4 * code_lanes)]] = int32_t;

// Loads codes as integers. GCC 12 would convert the bytes one by one.
inline CodeInts load_codes(const uint8_t* codes) {
  return reinterpret_cast<CodeInts>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
}

inline void store_codes(uint8_t* codes, CodeInts n) {
  const auto wide = reinterpret_cast<__m256i>(n);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), _mm_packus_epi16(words, words));
}
#endif

#endif

template <bool has_sign>
inline void decode_by_table(const uint8_t* codes, float scale, float* values) {
  static constexpr auto table = make_decode_table<has_sign>();
#pragma omp simd
  for (int64_t i = 0; i < state_block; ++i) values[i] = table.values[codes[i]] * scale;
}

template <bool has_sign>
inline void encode_by_table(const float* values, uint8_t* codes, float inverse) {
  static constexpr auto table = make_encode_table<has_sign>();
  for (int64_t i = 0; i < state_block; ++i) codes[i] = code_of(table, values[i], inverse);
}

// RETURNS the largest magnitude, from several independent maxima that need not wait for each other.
inline float largest_magnitude(const float* values) {
  constexpr int64_t lanes = 64;
  alignas(64) float largest[lanes] = {};
  for (int64_t i = 0; i < state_block; i += lanes) {
#ifdef __AVX512F__
#pragma GCC unroll 4
    for (int64_t lane = 0; lane < lanes; lane += code_lanes) {
      const __m512 larger = _mm512_maskz_range_ps(all_lanes, _mm512_load_ps(largest + lane),
                                                  _mm512_loadu_ps(values + i + lane), larger_size);
      _mm512_store_ps(largest + lane, larger);
    }
#else
#pragma omp simd
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const float size = __builtin_fabsf(values[i + lane]);
      largest[lane] = size > largest[lane] ? size : largest[lane];
    }
#endif
  }
  float all = 0;
#pragma omp simd reduction(max : all)
  for (int64_t lane = 0; lane < lanes; ++lane) all = largest[lane] > all ? largest[lane] : all;
  return all;
}

#ifdef __AVX2__

template <bool has_sign>
struct DecadeTables {
  // For each decade, indexed by the logarithm of a magnitude's number, plus 7, modulo 8: smallest value, and span of
  // all values above.
  float low[8], span[8];
  // For each decade of a number, from 1 (0: below all): magnitude = scale x + shift, at most `last`.
  float scale[8], shift[8];
  int32_t last[8];
  float border[8];  // i: least number of decade i + 1, divided by the block's scale
};

template <bool has_sign>
constexpr DecadeTables<has_sign> make_decade_tables() {
  using Map = DynamicMap<has_sign>;
  DecadeTables<has_sign> tables{};
  int first = 1;  // magnitude of the decade
  for (int decade = 1; decade <= 7; ++decade) {
    const int log = has_sign ? decade - 1 : decade;
    const int cells = 1 << log;
    double power = 1;
    for (int i = decade; i < 7; ++i) power /= 10;
    tables.low[(log + 7) % 8] = static_cast<float>(power * (0.1 + 0.45 / cells));
    tables.span[(log + 7) % 8] = static_cast<float>(0.9 * power);
    tables.scale[decade] = static_cast<float>(cells / (0.9 * power));
    tables.shift[decade] = static_cast<float>(first - cells / 9.0);
    tables.last[decade] = first + cells - 1;
    tables.border[decade - 1] = __builtin_bit_cast(float, Map::border_bits(first));
    first += cells;
  }
  tables.low[has_sign ? 6 : 7] = 1;
  tables.border[7] = __builtin_bit_cast(float, Map::border_bits(Map::most));
  return tables;
}

template <typename Vector, typename T>
inline Vector vector_of(const T (&table)[8]) {
  T repeated[code_lanes];
  for (int i = 0; i < code_lanes; ++i) repeated[i] = table[i % 8];
  Vector vector;
  std::memcpy(&vector, repeated, sizeof vector);
  return vector;
}

#ifdef __AVX512F__

// Values of DecadeTables, indexed by the logarithm of a magnitude's number, plus 15, modulo 16. Without a sign, zero
// has number 1.
struct LogTables {
  float low[16], span[16];
};

template <bool has_sign>
constexpr LogTables make_log_tables() {
  constexpr DecadeTables<has_sign> decades = make_decade_tables<has_sign>();
  LogTables tables{};
  for (int log = has_sign ? 0 : 1; log <= (has_sign ? 7 : 8); ++log) {
    tables.low[(log + 15) % 16] = decades.low[(log + 7) % 8];
    tables.span[(log + 15) % 16] = decades.span[(log + 7) % 8];
  }
  return tables;
}

template <bool has_sign>
inline void decode_block(const uint8_t* codes, float scale, float* values) {
  static constexpr auto tables = make_log_tables<has_sign>();
  const __m512 factor = _mm512_set1_ps(scale);
  const __m512 low = _mm512_mul_ps(_mm512_loadu_ps(tables.low), factor);
  const __m512 span = _mm512_mul_ps(_mm512_loadu_ps(tables.span), factor);
  const __m512i one = _mm512_set1_epi32(0x3f800000), fraction_bits = _mm512_set1_epi32(0x7fffff);
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000U));
  const __m512i zero = _mm512_set1_epi32(has_sign ? zero_code : -1);
  for (int64_t i = 0; i < state_block; i += code_lanes) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    const __m512i n = _mm512_sub_epi32(_mm512_maskz_cvtepu8_epi32(all_lanes, bytes), zero);
    const __m512i shifted = _mm512_castps_si512(_mm512_maskz_cvtepi32_ps(all_lanes, n));  // the sign is used last
    const __m512i log = _mm512_maskz_srli_epi32(all_lanes, shifted, 23);                  // plus 127
    const __m512i mantissa = _mm512_maskz_ternarylogic_epi32(all_lanes, shifted, fraction_bits, one, and_or);
    const __m512 fraction = _mm512_sub_ps(_mm512_castsi512_ps(mantissa), _mm512_castsi512_ps(one));
    __m512 value = _mm512_maskz_fmadd_ps(has_sign ? _mm512_test_epi32_mask(n, n) : all_lanes,
                                         _mm512_maskz_permutexvar_ps(all_lanes, log, span), fraction,
                                         _mm512_maskz_permutexvar_ps(all_lanes, log, low));
    if (has_sign)
      value =
          _mm512_castsi512_ps(_mm512_maskz_ternarylogic_epi32(all_lanes, n, sign, _mm512_castps_si512(value), and_or));
    _mm512_storeu_ps(values + i, value);
  }
}

// Tables for a value's position in its decade: cells (1 + u), where `cells` is the decade's number of cells and u rises
// from 0 at a tenth of its upper end to 1 at the end. The highest mantissa bits of 1 + u = scale x + 8 / 9 give
// the position. Magnitude 1 is a decade of its own, and so is zero with a sign.
template <bool has_sign>
struct OctaveTables {
  // For each exponent of a number from 2^-23 to 1, modulo 32: the border between decades in that octave, or a number
  // above the octave if it has none. Its lowest bits hold the number of mantissa bits after the position in the decade
  // below; they move the border by less than its rounding.
  uint32_t border[32];
  float scale[16];  // indexed by that number of bits, modulo 16
  float least;      // smaller magnitudes are raised to it: the smallest in a decade with a border
};

template <bool has_sign>
constexpr OctaveTables<has_sign> make_octave_tables() {
  constexpr DecadeTables<has_sign> decades = make_decade_tables<has_sign>();
  constexpr uint32_t most_bits = has_sign ? 24 : 23;
  OctaveTables<has_sign> tables{};
  for (uint32_t exponent = 104; exponent <= 127; ++exponent) {
    // Without a sign, every number above zero is at least in the lowest decade.
    uint32_t decade = has_sign ? 0 : 1;
    while (decade < 8 && __builtin_bit_cast(uint32_t, decades.border[decade]) < exponent << 23) ++decade;
    const bool is_inside = decade < 8 && __builtin_bit_cast(uint32_t, decades.border[decade]) < (exponent + 1) << 23;
    const uint32_t border = is_inside ? __builtin_bit_cast(uint32_t, decades.border[decade]) : 0x7fffff00U;
    tables.border[exponent % 32] = border | (most_bits - decade);
  }
  double power = 1e-6;
  for (uint32_t decade = 1; decade <= 7; ++decade, power *= 10)
    tables.scale[(most_bits - decade) % 16] = static_cast<float>(1 / (0.9 * power));
  tables.scale[(most_bits - 8) % 16] = 0.1125F;  // 1 has the first position for any lower bits
  tables.least = has_sign ? 0x1p-23F : decades.low[0];
  return tables;
}

// RETURNS 64 numbers, given 16 at a time, minus `first`, as bytes.
inline __m512i bytes_of(__m512i a, __m512i b, __m512i c, __m512i d, int16_t first) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i less = _mm512_set1_epi16(first);
  const __m512i ab = _mm512_sub_epi16(_mm512_packs_epi32(a, b), less);
  const __m512i cd = _mm512_sub_epi16(_mm512_packs_epi32(c, d), less);
  return _mm512_maskz_permutexvar_epi32(all_lanes, order, _mm512_packus_epi16(ab, cd));
}

template <bool has_sign>
inline void encode_values(const float* values, uint8_t* codes, float inverse) {
  static constexpr auto tables = make_octave_tables<has_sign>();
  const __m512i first_borders = _mm512_loadu_si512(tables.border);
  const __m512i other_borders = _mm512_loadu_si512(tables.border + 16);
  const __m512 scale = _mm512_loadu_ps(tables.scale), start = _mm512_set1_ps(8.0F / 9.0F);
  const __m512 below_two = _mm512_set1_ps(0x1.fffffep0F), least = _mm512_set1_ps(tables.least);
  const __m512i one = _mm512_set1_epi32(1), count_bits = _mm512_set1_epi32(31);
  const __m512i fraction_bits = _mm512_set1_epi32(0x7fffff), hidden_bit = _mm512_set1_epi32(0x800000);
  const __m512 factor = _mm512_set1_ps(inverse);
  const auto shifted_of = [&](const float* from) __attribute__((always_inline)) {
    const __m512 value = _mm512_loadu_ps(from);
    const __m512 scaled = _mm512_mul_ps(value, factor);
    const __m512 x = has_sign ? _mm512_maskz_range_ps(all_lanes, scaled, least, larger_size)
                              : _mm512_maskz_max_ps(all_lanes, scaled, least);
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i border =
        _mm512_permutex2var_epi32(first_borders, _mm512_maskz_srli_epi32(all_lanes, bits, 23), other_borders);
    const __m512i behind = _mm512_mask_sub_epi32(border, _mm512_cmpge_epi32_mask(bits, border), border, one);
    const __m512 line = _mm512_fmadd_ps(_mm512_maskz_permutexvar_ps(all_lanes, behind, scale), x, start);
    const __m512i mantissa = _mm512_castps_si512(_mm512_maskz_min_ps(all_lanes, line, below_two));
    const __m512i shifted = _mm512_maskz_ternarylogic_epi32(all_lanes, mantissa, fraction_bits, hidden_bit, and_or);
    const __m512i shift = _mm512_and_si512(behind, count_bits);
    // Without a sign, numbers begin with 1, the number of zero.
    if (has_sign) return _mm512_maskz_srlv_epi32(all_lanes, shifted, shift);
    const __m512i value_bits = _mm512_castps_si512(value);
    return _mm512_mask_srlv_epi32(one, _mm512_test_epi32_mask(value_bits, value_bits), shifted, shift);
  };
  for (int64_t i = 0; i < state_block; i += 64) {
    const float* const from = values + i;
    const __m512i a = shifted_of(from), b = shifted_of(from + 16), c = shifted_of(from + 32), d = shifted_of(from + 48);
    __m512i bytes;
    if (has_sign) {
      const auto below = [](const float* some) {
        return static_cast<uint64_t>(_mm512_movepi32_mask(_mm512_loadu_si512(some)));
      };
      const __mmask64 negative = below(from) | below(from + 16) << 16 | below(from + 32) << 32 | below(from + 48) << 48;
      const __m512i zero = _mm512_set1_epi8(zero_code);
      const __m512i n = bytes_of(a, b, c, d, 0);
      bytes = _mm512_add_epi8(n, zero);
      bytes = _mm512_mask_sub_epi8(bytes, negative, zero, _mm512_min_epu8(n, zero));  // there is no -1
    } else {
      bytes = bytes_of(a, b, c, d, 1);
    }
    _mm512_storeu_si512(codes + i, bytes);
  }
}

#else

template <bool has_sign>
inline void decode_block(const uint8_t* codes, float scale, float* values) {
  static constexpr auto tables = make_decade_tables<has_sign>();
  const auto low = vector_of<CodeFloats>(tables.low), span = vector_of<CodeFloats>(tables.span);
  for (int64_t i = 0; i < state_block; i += code_lanes) {
    CodeInts n = load_codes(codes + i) - (has_sign ? zero_code : 0);
    const CodeInts below = n >> 31;
    n = has_sign ? (n ^ below) - below : n;
    const auto shifted = reinterpret_cast<CodeInts>(__builtin_convertvector(has_sign ? n : n + 1, CodeFloats));
    const CodeInts log = shifted >> 23;  // biased exponent: log2 of the value plus 127
    const auto fraction = reinterpret_cast<CodeFloats>((shifted & 0x7fffff) | 0x3f800000) - 1.0F;
    const CodeFloats magnitude = _mm256_fmadd_ps(__builtin_shuffle(span, log), fraction, __builtin_shuffle(low, log));
    auto value = reinterpret_cast<CodeInts>(magnitude * scale) & (n != 0);
    if (has_sign) value ^= below & static_cast<int32_t>(0x80000000U);
    std::memcpy(values + i, &value, sizeof value);
  }
}

template <bool has_sign>
inline void encode_values(const float* values, uint8_t* codes, float inverse) {
  static constexpr auto tables = make_decade_tables<has_sign>();
  const auto scale = vector_of<CodeFloats>(tables.scale), shift = vector_of<CodeFloats>(tables.shift);
  const auto last = vector_of<CodeInts>(tables.last);
  for (int64_t i = 0; i < state_block; i += code_lanes) {
    CodeFloats value;
    std::memcpy(&value, values + i, sizeof value);
    const CodeFloats x = reinterpret_cast<CodeFloats>(reinterpret_cast<CodeInts>(value) & 0x7fffffff) * inverse;
    CodeInts decade{};
#pragma GCC unroll 7
    for (int border = 0; border < 7; ++border) decade -= x >= tables.border[border];
    const CodeFloats line = _mm256_fmadd_ps(__builtin_shuffle(scale, decade), x, __builtin_shuffle(shift, decade));
    CodeInts n = __builtin_convertvector(line, CodeInts);
    const CodeInts most = __builtin_shuffle(last, decade);
    n = (n < most ? n : most) - (x >= tables.border[7]);
    if (has_sign) {
      const CodeInts below = reinterpret_cast<CodeInts>(value) >> 31;
      n += below & (n == DynamicMap<true>::most);  // there is no -1
      n = zero_code + ((n ^ below) - below);
    } else {
      n -= (n == 0) & (value > 0.0F);
    }
    store_codes(codes + i, n);
  }
}

#endif

#else

template <bool has_sign>
inline void decode_block(const uint8_t* codes, float scale, float* values) {
  decode_by_table<has_sign>(codes, scale, values);
}

template <bool has_sign>
inline void encode_values(const float* values, uint8_t* codes, float inverse) {
  encode_by_table<has_sign>(values, codes, inverse);
}

#endif

}  // namespace
}  // namespace gptrain::ops::GPTRAIN_ISA
