// Codes of few-bit derivatives (ops/few_bits.h), a chunk of a row at a time. Included only by sources that are compiled
// once per instruction set; everything has internal linkage.
//
// With AVX-512, comparing 16 values gives a mask. Bit b of 16 codes is computed from such masks, and deposited at every
// bits-th bit of a word at once. Without AVX-512, codes are bytes before they are packed.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "ops/few_bits.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// Elements of every chunk but a row's last: few enough for the L1 cache.
constexpr int64_t coded_chunk = 512;
constexpr int64_t groups_of(int64_t elements) { return (elements + codes_in_group - 1) / codes_in_group; }

// Backward's factor for each code.
template <int bits>
struct CodeLevels {
  explicit CodeLevels(ActivationKind kind) {
    const ActivationPieces<bits> pieces = activation_pieces<bits>(kind);
    // Codes of less than 4 bits are repeated for each value of the bits above.
    for (int i = 0; i < 16; ++i) {
      const int piece = i % pieces.count;
      of[i] = i / pieces.count % 2 == 0 ? pieces.levels[piece] : 1.0F - pieces.levels[piece];
    }
  }
  alignas(64) float of[16];
};

#ifdef __AVX512F__

// RETURNS a word with every bits-th bit set, from the lowest, 16 in all.
template <int bits>
constexpr uint64_t lowest_bits() {
  uint64_t result = 0;
  for (int i = 0; i < 16; ++i) result |= uint64_t{1} << (i * bits);
  return result;
}

template <ActivationKind kind, int bits>
uint64_t codes_of(const float* values) {
  constexpr ActivationPieces<bits> pieces = activation_pieces<bits>(kind);
  const __m512 value = _mm512_loadu_ps(values);
  const __m512 magnitude = _mm512_abs_ps(value);
  // Bit b of the number of borders below a value is 1 if an odd number of these borders have an index divisible by 2^b.
  uint32_t planes[bits] = {};
#pragma GCC unroll 8
  for (int border = 1; border < pieces.count; ++border) {
    const __mmask16 above = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(pieces.borders[border - 1]), _CMP_GT_OQ);
#pragma GCC unroll 4
    for (int bit = 0; bit + 1 < bits; ++bit)
      if (border % (1 << bit) == 0) planes[bit] ^= above;
  }
  planes[bits - 1] = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_LT_OQ);
  uint64_t codes = 0;
#pragma GCC unroll 4
  for (int bit = 0; bit < bits; ++bit) codes |= _pdep_u64(planes[bit], lowest_bits<bits>() << bit);
  return codes;
}

// Encodes `count` values. REQUIRES: `values` has memory for whole groups of 16.
template <ActivationKind kind, int bits>
void encode(const float* values, int64_t count, uint8_t* codes) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16, codes += 2 * bits) {
    const uint64_t word = codes_of<kind, bits>(values + i);
    std::memcpy(codes, &word, 2 * bits);
  }
  if (i == count) return;
  const uint64_t word = codes_of<kind, bits>(values + i);
  std::memcpy(codes, &word, groups_of(count - i) * bits);
}

// Two groups of codes, each of 32 bits at most.
template <int bits>
__m512 levels_of(uint32_t first, uint32_t second, __m512 levels) {
  const __m512i shifts = _mm512_set_epi32(7 * bits, 6 * bits, 5 * bits, 4 * bits, 3 * bits, 2 * bits, bits, 0,  //
                                          7 * bits, 6 * bits, 5 * bits, 4 * bits, 3 * bits, 2 * bits, bits, 0);
  const __m512i words =
      _mm512_mask_set1_epi32(_mm512_set1_epi32(static_cast<int>(first)), 0xff00, static_cast<int>(second));
  // The permutation uses the lowest four bits. (GCC 12 warns of an uninitialized value in forms without a mask.)
  const __m512i codes = _mm512_maskz_srlv_epi32(0xffff, words, shifts);
  return _mm512_maskz_permutexvar_ps(0xffff, codes, levels);
}

// REQUIRES: `out` has memory for whole groups.
template <int bits>
void decode(const uint8_t* codes, int64_t count, const CodeLevels<bits>& levels, float* out) {
  const __m512 table = _mm512_load_ps(levels.of);
  const int64_t groups = groups_of(count);
  int64_t group = 0;
  // Reads four bytes of each group, as no instruction reads three; the last group has none behind it.
  for (; group + 2 < groups; group += 2, codes += 2 * bits) {
    uint32_t first, second;
    std::memcpy(&first, codes, sizeof first);
    std::memcpy(&second, codes + bits, sizeof second);
    _mm512_storeu_ps(out + group * codes_in_group, levels_of<bits>(first, second, table));
  }
  for (; group < groups; ++group, codes += bits) {
    uint32_t last = 0;
    std::memcpy(&last, codes, bits);
    _mm512_mask_storeu_ps(out + group * codes_in_group, 0x00ff, levels_of<bits>(last, 0, table));
  }
}

#else

// Pack the lowest `bits` bits of 8 bytes side by side, and unpack them.
template <int bits>
uint64_t packed(uint64_t bytes) {
  constexpr uint64_t pair = ((uint64_t{1} << (2 * bits)) - 1) * 0x0001000100010001U;
  constexpr uint64_t four = ((uint64_t{1} << (4 * bits)) - 1) * 0x0000000100000001U;
  constexpr uint64_t eight = (uint64_t{1} << (8 * bits)) - 1;
  bytes = (bytes | bytes >> (8 - bits)) & pair;
  bytes = (bytes | bytes >> (16 - 2 * bits)) & four;
  return (bytes | bytes >> (32 - 4 * bits)) & eight;
}
template <int bits>
uint64_t unpacked(uint64_t codes) {
  constexpr uint64_t four = ((uint64_t{1} << (4 * bits)) - 1) * 0x0000000100000001U;
  constexpr uint64_t pair = ((uint64_t{1} << (2 * bits)) - 1) * 0x0001000100010001U;
  constexpr uint64_t one = ((uint64_t{1} << bits) - 1) * 0x0101010101010101U;
  codes = (codes | codes << (32 - 4 * bits)) & four;
  codes = (codes | codes << (16 - 2 * bits)) & pair;
  return (codes | codes << (8 - bits)) & one;
}

template <ActivationKind kind, int bits>
void encode(const float* values, int64_t count, uint8_t* codes) {
  constexpr ActivationPieces<bits> pieces = activation_pieces<bits>(kind);
  alignas(64) uint8_t bytes[coded_chunk];
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = values[i] < 0.0F ? -values[i] : values[i];
    int32_t code = values[i] < 0.0F ? pieces.count : 0;
#pragma GCC unroll 8
    for (int j = 0; j + 1 < pieces.count; ++j) code += magnitude > pieces.borders[j] ? 1 : 0;
    bytes[i] = static_cast<uint8_t>(code);
  }
  const int64_t groups = groups_of(count);
  for (int64_t i = count; i < groups * codes_in_group; ++i) bytes[i] = 0;
  for (int64_t group = 0; group < groups; ++group) {
    uint64_t of_group;
    std::memcpy(&of_group, bytes + group * codes_in_group, sizeof of_group);
    const uint64_t word = packed<bits>(of_group);
    std::memcpy(codes + group * bits, &word, bits);
  }
}

template <int bits>
void decode(const uint8_t* codes, int64_t count, const CodeLevels<bits>& levels, float* out) {
  alignas(64) uint8_t bytes[coded_chunk];
  const int64_t groups = groups_of(count);
  for (int64_t group = 0; group < groups; ++group) {
    const uint8_t* from = codes + group * bits;
    uint64_t word = 0;
    // Reads four bytes and uses three, as no instruction reads three. The last group has none behind it.
    if (bits == 3 && group + 1 < groups) {
      uint32_t four;
      std::memcpy(&four, from, sizeof four);
      word = four;
    } else {
      std::memcpy(&word, from, bits);
    }
    const uint64_t of_group = unpacked<bits>(word);
    std::memcpy(bytes + group * codes_in_group, &of_group, sizeof of_group);
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = levels.of[bytes[i]];
}

#endif

}  // namespace
}  // namespace gptrain::ops::GPTRAIN_ISA
