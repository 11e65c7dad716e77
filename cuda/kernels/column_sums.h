// Sums over the rows of a matrix: the gradient of a bias.
#pragma once

#include <cstddef>

#include "base/matrix.h"
#include "stream.h"

namespace gptrain {

// sums[c] (+)= sum over n of values[n, c].
struct ColumnSums {
  Matrix values;    // [N, cols] f32, bf16 or f16
  Matrix sums;      // [1, cols] f32
  bool accumulate;  // else what `sums` held is overwritten
};

// Sums have one order, whatever the device: of 8 rows in f32, theirs in f64, those of a chunk of rows rounded to f32,
// theirs in f64. `scratch`: gpu_column_sum_bytes, aligned to 4 bytes. Operands are device memory; nothing waits.
void cuda_run(const ColumnSums& op, Stream stream, std::byte* scratch);

}  // namespace gptrain
