// Sums over the rows of a matrix: the gradient of a bias.
#pragma once

#include <cstddef>

#include "base/matrix.h"
#include "stream.h"

namespace gptrain {

// sums[c] (+)= sum over n of values[n, c].
struct ColumnSums {
  Matrix values;    // [N, cols] f32, bf16 or f16
  Matrix sums;      // [1, cols] f32, or f64 without `accumulate`
  bool accumulate;  // else what `sums` held is overwritten
};

// Sums have one order, whatever the device: of 8 rows in f32, theirs in f64, those of a chunk of rows rounded to f32,
// theirs in f64. `scratch`: gpu_column_sum_bytes, aligned to 4 bytes. Operands are device memory; nothing waits.
void cuda_run(const ColumnSums& op, Stream stream, std::byte* scratch);

// sums[c] (+)= the sum over i < count of partials[i][c], in f64; likewise, with more_sums given, for the columns from
// `cols` on. The second half of sums over rows whose first half leaves one f32 partial of each column for every chunk
// of rows. Sum: float, or double, which is never added to.
template <typename Sum>
struct PartialSums {
  const float* partials;  // [count, cols], or [count, 2 cols]
  int64_t count;
  int64_t cols;
  Sum* sums;       // [cols]
  Sum* more_sums;  // [cols], or null
  bool accumulate = false;
};

void cuda_run(const PartialSums<float>& op, Stream stream);
void cuda_run(const PartialSums<double>& op, Stream stream);

}  // namespace gptrain
