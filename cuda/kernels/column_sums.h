// Sums over the rows of a matrix: the gradient of a bias.
#pragma once

#include <cstddef>

#include "base/matrix.h"
#include "stream.h"

namespace gptrain::inline cuda {

// sums[c] (+)= sum over n of values[n, c].
struct ColumnSums {
  Matrix values;    // [N, cols] f32, bf16 or f16
  Matrix sums;      // [1, cols] f32, or f64 without `accumulate`
  bool accumulate;  // false: `sums` is overwritten
};

// Sums in a fixed order, on every device: 8 rows in f32, these sums in f64 rounded to f32 per chunk of rows, the chunks
// in f64. `scratch`: gpu_column_sum_bytes, aligned to 4 bytes. Operands are device memory; nothing waits.
void cuda_run(const ColumnSums& op, Stream stream, std::byte* scratch);

// sums[c] (+)= sum over i < count of partials[i][c], in f64; more_sums, if given, likewise for the columns from `cols`
// on. This is the second half of sums over rows whose first half leaves one f32 partial per column and chunk of rows.
// Sum: float, or double, which is never accumulated.
template <typename Sum>
struct PartialSums {
  const float* partials;  // [count, cols], or [count, 2 cols] with more_sums
  int64_t count;
  int64_t cols;
  Sum* sums;       // [cols]
  Sum* more_sums;  // [cols]; null: none
  bool accumulate = false;
};

void cuda_run(const PartialSums<float>& op, Stream stream);
void cuda_run(const PartialSums<double>& op, Stream stream);

}  // namespace gptrain::cuda
