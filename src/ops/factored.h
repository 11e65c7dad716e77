// Second moments of matrices, factored into one number per row and one per column (arXiv 1804.04235), in three ops. The
// caller adds up the sums over ranks between the first and the second op. With g the scaled gradient of a matrix [n,
// m], t = state.updates (this step's included) and b = 1 - t^beta2_decay,
//   FactoredSums:       sums of the squares by row and by column, over the rank's part
//   FactoredMoments:    r_i = b r_i + (1 - b) (mean of row i of g^2 + eps),
//                       c_j = b c_j + (1 - b) (mean of column j of g^2 + eps)
//   FactoredDirection:  g_ij becomes u_ij = g_ij / sqrt(r_i / mean(r)) / sqrt(c_j)
// Sums and means are f64. If the step is skipped, moments and gradients do not change.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

struct FactoredMatrix {
  int64_t rows, cols;
  int64_t row_sums, col_sums;        // first element of its row and column sums in FactoredSums::sums
  int64_t row_moments, col_moments;  // first element of its moments in FactoredMoments::rows and cols
};

// Contiguous elements of a flat buffer that belong to one matrix: part of a box of it, stored row after row.
struct MatrixRange {
  int64_t offset;          // elements from the start of the buffer
  int64_t count;           // above 0
  int64_t first;           // elements of the box before the range
  int64_t row, col, cols;  // the box in the matrix: its corner and its width
  int64_t matrix;          // index in the table of matrices

  // The part of one row: columns [col, col + count) of the matrix.
  struct Row {
    int64_t offset, count, row, col;
  };
  constexpr int64_t num_rows() const { return (first + count - 1) / cols - first / cols + 1; }
  constexpr Row part_of_row(int64_t i) const {
    const int64_t begin = (first / cols + i) * cols;  // first element of the row in the box
    const int64_t from = begin > first ? begin : first;
    const int64_t to = begin + cols < first + count ? begin + cols : first + count;
    return {offset + from - first, to - from, row + begin / cols, col + from - begin};
  }
};

// Tables are in device memory. `elements` is the sum over all ranges. REQUIRES: no two ranges belong to one matrix.
struct FactoredSums {
  static constexpr std::string_view name = "factored_sums";
  const FactoredMatrix* matrices = nullptr;
  const MatrixRange* ranges = nullptr;
  int64_t num_ranges = 0;
  int64_t elements = 0;
  Matrix gradients;  // [1, elements of the buffer] f32, not scaled
  Matrix sums;       // [1, n] f64 out; 0 for rows and columns in no range
};

struct FactoredMoments {
  static constexpr std::string_view name = "factored_moments";
  const FactoredMatrix* matrices = nullptr;
  int64_t num_matrices = 0;
  const StepState* state = nullptr;
  double beta2_decay = 0, eps = 0;
  Matrix sums;        // [1, n] f64
  Matrix rows, cols;  // [1, ..] f32 each, in and out: r and c of all matrices
  Matrix means;       // [1, num_matrices] f64 out: mean of each matrix' r
};

struct FactoredDirection {
  static constexpr std::string_view name = "factored_direction";
  const FactoredMatrix* matrices = nullptr;
  const MatrixRange* ranges = nullptr;
  int64_t num_ranges = 0;
  int64_t elements = 0;
  const StepState* state = nullptr;
  Matrix rows, cols;  // [1, ..] f32
  Matrix means;       // [1, num_matrices] f64
  Matrix gradients;   // [1, elements of the buffer] f32, in and out
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_FACTORED(X) X(FactoredSums) X(FactoredMoments) X(FactoredDirection)
