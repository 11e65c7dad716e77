// Dropout's factors, a span of columns at a time, from Philox words computed in lanes (see Dropout in ops.h).
#pragma once

#include "ops/cpu/kernels/isa.h"
#include "ops/ops.h"

namespace gptrain::GPTRAIN_ISA {
namespace {

// Columns whose factors are computed at a time: small enough for the L1 cache.
constexpr int64_t dropout_span = 1024;

// What is the same for a whole row.
struct DropoutRow {
  uint32_t k0, k1;
  uint32_t token, sample_low, sample_high;
  uint32_t threshold;
  float keep_scale;
};

inline DropoutRow dropout_row(const Dropout& dropout, int64_t row, int64_t sequence_length) {
  const int64_t of_batch = dropout.first_row + row;
  const auto sample = static_cast<uint64_t>(dropout.sample_ids[of_batch / sequence_length]);
  return {dropout.key.k0,
          dropout.key.k1,
          static_cast<uint32_t>(of_batch % sequence_length),
          static_cast<uint32_t>(sample),
          static_cast<uint32_t>(sample >> 32),
          drop_threshold(dropout.p),
          static_cast<float>(1.0 / (1.0 - dropout.p))};
}

// factors[i], for columns first_column + i: 0 where dropped, else 1 / (1 - p). first_column is a multiple of 4, count
// at most dropout_span; `factors` has dropout_span elements.
inline void fill_dropout_factors(const DropoutRow& row, int64_t first_column, int64_t count, float* factors) {
  const auto first_group = static_cast<uint32_t>(first_column / 4);
  const auto num_groups = static_cast<int32_t>((count + 3) / 4);
#pragma omp simd
  for (int32_t group = 0; group < num_groups; ++group) {
    uint32_t c0 = first_group + static_cast<uint32_t>(group);
    uint32_t c1 = row.token;
    uint32_t c2 = row.sample_low;
    uint32_t c3 = row.sample_high;
    uint32_t k0 = row.k0;
    uint32_t k1 = row.k1;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53U} * c0;
      const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    factors[4 * group] = c0 < row.threshold ? 0.0F : row.keep_scale;
    factors[4 * group + 1] = c1 < row.threshold ? 0.0F : row.keep_scale;
    factors[4 * group + 2] = c2 < row.threshold ? 0.0F : row.keep_scale;
    factors[4 * group + 3] = c3 < row.threshold ? 0.0F : row.keep_scale;
  }
}

// Calls body(first, count, factors) for spans of columns [first_column, end_column) of one row.
template <typename Body>
inline void for_dropout_spans(const Dropout& dropout, int64_t row, int64_t sequence_length, int64_t first_column,
                              int64_t end_column, const Body& body) {
  const DropoutRow shared = dropout_row(dropout, row, sequence_length);
  float factors[dropout_span];
  for (int64_t first = first_column; first < end_column; first += dropout_span) {
    const int64_t count = end_column - first < dropout_span ? end_column - first : dropout_span;
    fill_dropout_factors(shared, first, count, factors);
    body(first, count, factors);
  }
}

}  // namespace
}  // namespace gptrain::GPTRAIN_ISA
