// out = x + dropout(branch) for one row, shared by the norm and the plain addition.
#pragma once

#include "ops/cpu/kernels/dropout.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

template <typename R, typename C>
inline void add_branch(const R* x, const C* branch, R* out, int64_t cols, const Dropout& dropout, int64_t row,
                       const TokenRows& token_rows) {
  if (dropout.p > 0) {
    for_dropout_spans(dropout, row, token_rows, 0, cols, [&](int64_t at, int64_t count, const float* factors) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) store(out + at + i, load(x + at + i) + load(branch + at + i) * factors[i]);
    });
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) store(out + i, load(x + i) + load(branch + i));
}

}  // namespace
}  // namespace gptrain::ops::GPTRAIN_ISA
