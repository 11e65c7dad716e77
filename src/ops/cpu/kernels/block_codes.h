// Codes of 8-bit state and the numbers that they stand for (base/dynamic_map.h), a block at a time. Included only by
// sources that are compiled once per instruction set; everything has internal linkage.
//
// With vectors the magnitudes are computed: one of a decade is a straight line in its number, and what differs between
// decades comes from tables of eight.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "base/dynamic_map.h"

namespace gptrain::GPTRAIN_ISA {
namespace {

// Several maxima at a time, of which none waits for the one before.
inline float largest_magnitude(const float* values) {
  constexpr int64_t lanes = 64;
  float largest[lanes] = {};
  for (int64_t i = 0; i < state_block; i += lanes) {
#pragma omp simd
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const float size = __builtin_fabsf(values[i + lane]);
      largest[lane] = size > largest[lane] ? size : largest[lane];
    }
  }
  float all = 0;
#pragma omp simd reduction(max : all)
  for (int64_t lane = 0; lane < lanes; ++lane) all = largest[lane] > all ? largest[lane] : all;
  return all;
}

#ifdef __AVX2__

#ifdef __AVX512F__
constexpr int code_lanes = 16;
#else
constexpr int code_lanes = 8;
#endif
using CodeFloats [[gnu::vector_size(4 * code_lanes)]] = float;
using CodeInts [[gnu::vector_size(4 * code_lanes)]] = int32_t;

// GCC 12 takes bytes apart one by one. (And it takes forms without a mask of all lanes for uses of an uninitialized
// value.)
inline CodeInts load_codes(const uint8_t* codes) {
#ifdef __AVX512F__
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return reinterpret_cast<CodeInts>(_mm512_maskz_cvtepu8_epi32(0xffff, bytes));
#else
  return reinterpret_cast<CodeInts>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
#endif
}

inline void store_codes(uint8_t* codes, CodeInts n) {
#ifdef __AVX512F__
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(n));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
#else
  const auto wide = reinterpret_cast<__m256i>(n);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), _mm_packus_epi16(words, words));
#endif
}

template <bool has_sign>
struct DecadeTables {
  // By the logarithm of a magnitude's place, plus 7, modulo 8: its smallest value, and what all above it span.
  float low[8], span[8];
  // By the decade of a number, from 1; 0 is below all: magnitude = scale x + shift, at most `last`.
  float scale[8], shift[8];
  int32_t last[8];
  float border[8];  // between each decade and the next, from 0; of magnitude 1
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

template <bool has_sign>
inline void decode_block(const uint8_t* codes, float scale, float* values) {
  static constexpr auto tables = make_decade_tables<has_sign>();
  const auto low = vector_of<CodeFloats>(tables.low), span = vector_of<CodeFloats>(tables.span);
  for (int64_t i = 0; i < state_block; i += code_lanes) {
    CodeInts n = load_codes(codes + i) - (has_sign ? zero_code : 0);
    const CodeInts below = n >> 31;
    n = has_sign ? (n ^ below) - below : n;
    const auto place = reinterpret_cast<CodeInts>(__builtin_convertvector(has_sign ? n : n + 1, CodeFloats));
    const CodeInts log = place >> 23;  // plus 127
    const auto fraction = reinterpret_cast<CodeFloats>((place & 0x7fffff) | 0x3f800000) - 1.0F;
    const CodeFloats magnitude = __builtin_shuffle(low, log) + __builtin_shuffle(span, log) * fraction;
    auto value = reinterpret_cast<CodeInts>(magnitude * scale) & (n != 0);
    if (has_sign) value ^= below & static_cast<int32_t>(0x80000000U);
    std::memcpy(values + i, &value, sizeof value);
  }
}

#ifdef __AVX512F__

template <bool has_sign>
struct OctaveTables {
  // By the exponent of a number from 2^-23 to 1, modulo 32: the border between decades in that octave, or one above it,
  // with the decade below it in the lowest bits, which move the border by less than its rounding. Magnitude 1 is a
  // decade of its own.
  uint32_t border[32];
  // By decade: magnitude = scale x + shift, at most `last`.
  float scale[16], shift[16];
  int32_t last[16];
};

template <bool has_sign>
constexpr OctaveTables<has_sign> make_octave_tables() {
  constexpr DecadeTables<has_sign> decades = make_decade_tables<has_sign>();
  OctaveTables<has_sign> tables{};
  for (uint32_t exponent = 104; exponent <= 127; ++exponent) {
    uint32_t decade = 0;
    while (decade < 8 && __builtin_bit_cast(uint32_t, decades.border[decade]) < exponent << 23) ++decade;
    const bool is_inside = decade < 8 && __builtin_bit_cast(uint32_t, decades.border[decade]) < (exponent + 1) << 23;
    const uint32_t border = is_inside ? __builtin_bit_cast(uint32_t, decades.border[decade]) : 0x7fffff00U;
    tables.border[exponent % 32] = border | decade;
  }
  for (int decade = 0; decade < 8; ++decade) {
    tables.scale[decade] = decades.scale[decade];
    tables.shift[decade] = decades.shift[decade];
    tables.last[decade] = decades.last[decade];
  }
  tables.shift[8] = static_cast<float>(DynamicMap<has_sign>::most);
  tables.last[8] = DynamicMap<has_sign>::most;
  return tables;
}

template <bool has_sign>
inline void encode_values(const float* values, uint8_t* codes, float inverse) {
  static constexpr auto tables = make_octave_tables<has_sign>();
  const __m512i first_borders = _mm512_loadu_si512(tables.border);
  const __m512i other_borders = _mm512_loadu_si512(tables.border + 16);
  const __m512 scale = _mm512_loadu_ps(tables.scale), shift = _mm512_loadu_ps(tables.shift);
  const __m512i last = _mm512_loadu_si512(tables.last), one = _mm512_set1_epi32(1);
  const __m512i least = _mm512_set1_epi32(104 << 23), sign = _mm512_set1_epi32(0x7fffffff);
  const __m512 factor = _mm512_set1_ps(inverse);
  constexpr __mmask16 all = 0xffff;  // see load_codes
  for (int64_t i = 0; i < state_block; i += code_lanes) {
    const __m512i value = _mm512_loadu_si512(values + i);
    const __m512 x = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(value, sign)), factor);
    const __m512i bits = _mm512_maskz_max_epi32(all, _mm512_castps_si512(x), least);
    const __m512i exponent = _mm512_maskz_srli_epi32(all, bits, 23);
    const __m512i border = _mm512_permutex2var_epi32(first_borders, exponent, other_borders);
    const __m512i decade = _mm512_mask_add_epi32(border, _mm512_cmpge_epi32_mask(bits, border), border, one);
    const __m512 line = _mm512_fmadd_ps(_mm512_maskz_permutexvar_ps(all, decade, scale), x,
                                        _mm512_maskz_permutexvar_ps(all, decade, shift));
    const __m512i most = _mm512_maskz_permutexvar_epi32(all, decade, last);
    __m512i n = _mm512_maskz_min_epi32(all, _mm512_maskz_cvttps_epi32(all, line), most);
    if (has_sign) {
      const __m512i zero = _mm512_set1_epi32(zero_code);
      const __mmask16 below = _mm512_movepi32_mask(value);
      n = _mm512_mask_min_epi32(n, below, n, zero);  // there is no -1
      n = _mm512_mask_sub_epi32(_mm512_add_epi32(zero, n), below, zero, n);
    } else {
      n = _mm512_mask_max_epi32(n, _mm512_cmpgt_epi32_mask(value, _mm512_setzero_si512()), n, one);
    }
    store_codes(codes + i, reinterpret_cast<CodeInts>(n));
  }
}

#else

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
    const CodeFloats line = __builtin_shuffle(scale, decade) * x + __builtin_shuffle(shift, decade);
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
  static constexpr auto table = make_decode_table<has_sign>();
  for (int64_t i = 0; i < state_block; ++i) values[i] = table.values[codes[i]] * scale;
}

template <bool has_sign>
inline void encode_values(const float* values, uint8_t* codes, float inverse) {
  static constexpr auto table = make_encode_table<has_sign>();
  for (int64_t i = 0; i < state_block; ++i) codes[i] = code_of(table, values[i], inverse);
}

#endif

}  // namespace
}  // namespace gptrain::GPTRAIN_ISA
