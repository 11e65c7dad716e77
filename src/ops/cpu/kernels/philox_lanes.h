// Philox words (base/philox.h) of many counters at once, and dropout's factors from them. Included only by sources that
// are compiled once per instruction set; everything has internal linkage.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace gptrain::inline ops {
namespace {

#if defined(__AVX512F__)
constexpr int philox_bytes = 64;
#elif defined(__AVX2__)
constexpr int philox_bytes = 32;
#else
constexpr int philox_bytes = 16;
#endif

// One word of a counter in the low half of each 64-bit lane. The high half is never used, so the two halves of a 64-bit
// product serve as two words without being separated.
using PhiloxWords [[gnu::vector_size(philox_bytes)]] = uint64_t;
constexpr int philox_lanes = philox_bytes / 8;
// Vectors of counters computed at a time: with two, one's products run while the other's are in flight.
constexpr int philox_vectors = 2;
constexpr int philox_counters = philox_vectors * philox_lanes;

inline PhiloxWords product_of_low_halves(PhiloxWords a, PhiloxWords b) {
#if defined(__AVX512F__)
  // Masked form with all lanes: GCC 12 warns of an uninitialized value in the form without a mask.
  return reinterpret_cast<PhiloxWords>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<PhiloxWords>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<PhiloxWords>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffffU) * (b & 0xffffffffU);
#endif
}

// The key and words 1 to 3 that all counters share; CounterLanes has word 0 of each.
struct DropoutCounters {
  uint32_t k0, k1;
  uint32_t c1, c2, c3;
  uint32_t threshold;  // a word below it drops its element
  float keep_scale;
};

struct PhiloxCounters {
  uint32_t k0, k1;
  uint32_t c1, c2, c3;
};

using DrawnWords [[gnu::vector_size(philox_bytes)]] = uint32_t;

// Word 0 of counters i < philox_counters. The order of lanes lets for_philox_words give words in counter order.
struct CounterLanes {
  PhiloxWords c0[philox_vectors];

  // Sets counter i to counter_of(i).
  template <typename CounterOf>
  explicit CounterLanes(const CounterOf& counter_of) {
    for (int i = 0; i < philox_vectors; ++i) {
      for (int lane = 0; lane < philox_lanes; ++lane)
        c0[i][lane] = counter_of(i * philox_lanes + lane % 2 * philox_lanes / 2 + lane / 2);
    }
  }
  // Sets counter i to first + i.
  explicit CounterLanes(uint32_t first) {
    PhiloxWords order;
    for (int lane = 0; lane < philox_lanes; ++lane)
      order[lane] = static_cast<uint64_t>(lane % 2 * philox_lanes / 2 + lane / 2);
    for (int i = 0; i < philox_vectors; ++i) c0[i] = order + (first + static_cast<uint32_t>(i * philox_lanes));
  }
};

// Draws words 0 to 3 of counters i < philox_counters. With all words in one list, word w of counter i at 4 i + w, calls
// body(n, front, back) for each part of the list: the words from n on are the lanes of `front`, then those of `back`.
template <typename Counters, typename Body>
inline void for_philox_words(const Counters& at, const CounterLanes& counters, const Body& body) {
  PhiloxWords low, high;
  for (int lane = 0; lane < philox_lanes; ++lane) {
    low[lane] = static_cast<uint64_t>(lane - lane % 2 + lane % 2 * philox_lanes);
    high[lane] = low[lane] + 1;
  }
  PhiloxWords c0[philox_vectors], c1[philox_vectors], c2[philox_vectors], c3[philox_vectors];
  for (int i = 0; i < philox_vectors; ++i) {
    c0[i] = counters.c0[i];
    c1[i] = PhiloxWords{} + at.c1;
    c2[i] = PhiloxWords{} + at.c2;
    c3[i] = PhiloxWords{} + at.c3;
  }
  PhiloxWords k0 = PhiloxWords{} + at.k0;
  PhiloxWords k1 = PhiloxWords{} + at.k1;
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < philox_vectors; ++i) {
      const PhiloxWords p0 = product_of_low_halves(c0[i], PhiloxWords{} + 0xD2511F53U);
      const PhiloxWords p1 = product_of_low_halves(c2[i], PhiloxWords{} + 0xCD9E8D57U);
      c0[i] = (p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = p1;
      c2[i] = (p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = p0;
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (int i = 0; i < philox_vectors; ++i) {
    const PhiloxWords first_pair = (c0[i] & 0xffffffffU) | (c1[i] << 32);
    const PhiloxWords second_pair = (c2[i] & 0xffffffffU) | (c3[i] << 32);
    const auto front = reinterpret_cast<DrawnWords>(__builtin_shuffle(first_pair, second_pair, low));
    const auto back = reinterpret_cast<DrawnWords>(__builtin_shuffle(first_pair, second_pair, high));
    body(i * 4 * philox_lanes, front, back);
  }
}

// factors[4 i + w], i < philox_counters: 0 if word w of counter i drops its element, else keep_scale.
inline void dropout_factors(float* factors, const DropoutCounters& at, const CounterLanes& counters) {
  using Factors [[gnu::vector_size(philox_bytes)]] = float;
  const Factors keep = Factors{} + at.keep_scale;
  for_philox_words(at, counters, [&](int word, DrawnWords front, DrawnWords back) {
    const Factors results[2] = {front < at.threshold ? Factors{} : keep, back < at.threshold ? Factors{} : keep};
    std::memcpy(factors + word, results, sizeof results);
  });
}

// The same for counters whose word 0 is first + i.
inline void dropout_factors(float* factors, const DropoutCounters& at, uint32_t first) {
  dropout_factors(factors, at, CounterLanes(first));
}

// words[4 i + w], i < philox_counters: word w of the counter whose word 0 is first + i.
inline void philox_words(uint32_t* words, const PhiloxCounters& at, uint32_t first) {
  for_philox_words(at, CounterLanes(first), [&](int word, DrawnWords front, DrawnWords back) {
    const DrawnWords results[2] = {front, back};
    std::memcpy(words + word, results, sizeof results);
  });
}

}  // namespace
}  // namespace gptrain::ops
