// Dropout's factors for rows, a span of columns at a time (see Dropout in ops.h).
#pragma once

#include "ops/cpu/kernels/isa.h"
#include "ops/cpu/kernels/philox_lanes.h"
#include "ops/ops.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// Columns whose factors are computed at a time: few enough for the L1 cache.
constexpr int64_t dropout_span = 1024;
static_assert(dropout_span % (4 * philox_counters) == 0);

inline DropoutCounters dropout_row(const Dropout& dropout, int64_t row, const TokenRows& token_rows) {
  const int64_t of_batch = dropout.first_row + row;
  const auto sample = static_cast<uint64_t>(dropout.sample_ids[token_rows.sequence(of_batch)]);
  return {dropout.key.k0,
          dropout.key.k1,
          static_cast<uint32_t>(token_rows.token(of_batch)),
          static_cast<uint32_t>(sample),
          static_cast<uint32_t>(sample >> 32),
          drop_threshold(dropout.p),
          static_cast<float>(1.0 / (1.0 - dropout.p))};
}

// Calls body(first, count, factors) for spans of columns [first_column, end_column) of one row: factors[i], for column
// first + i, is 0 if it is dropped, else 1 / (1 - p). REQUIRES: first_column is a multiple of 4.
template <typename Body>
inline void for_dropout_spans(const Dropout& dropout, int64_t row, const TokenRows& token_rows, int64_t first_column,
                              int64_t end_column, const Body& body) {
  const DropoutCounters row_counters = dropout_row(dropout, row, token_rows);
  float factors[dropout_span];
  for (int64_t first = first_column; first < end_column; first += dropout_span) {
    const int64_t count = end_column - first < dropout_span ? end_column - first : dropout_span;
    for (int64_t at = 0; at < count; at += 4 * philox_counters) {
      dropout_factors(factors + at, row_counters, static_cast<uint32_t>((first + at) / 4));
    }
    body(first, count, factors);
  }
}

}  // namespace
}  // namespace gptrain::ops::GPTRAIN_ISA
