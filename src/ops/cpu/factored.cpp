// Second moments by row and column (ops/factored.h). The order of every sum is the same for any number of threads.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"

namespace gptrain::inline ops {

void cpu_run(const FactoredSums& op, const CpuContext& context) {
  auto* const sums = op.sums.as<double>();
  const auto* const gradients = op.gradients.as<const float>();
  std::fill_n(sums, op.sums.cols, 0.0);
  for (int64_t i = 0; i < op.num_ranges; ++i) {
    const MatrixRange& range = op.ranges[i];
    const FactoredMatrix& matrix = op.matrices[range.matrix];
    parallel_shares(context.num_threads, range.num_rows(), [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        const MatrixRange::Row part = range.part_of_row(row);
        sums[matrix.row_sums + part.row] =
            context.kernels->sum_of_squares(op.gradients, part.offset, part.offset + part.count);
      }
    });
    parallel_column_blocks(context.num_threads, range.cols, [&](int64_t first, int64_t end) {
      for (int64_t row = 0; row < range.num_rows(); ++row) {
        const MatrixRange::Row part = range.part_of_row(row);
        const int64_t from = std::max(part.col, range.col + first);
        const int64_t to = std::min(part.col + part.count, range.col + end);
        if (from < to)
          context.kernels->add_squares(gradients + part.offset + from - part.col, to - from,
                                       sums + matrix.col_sums + from);
      }
    });
  }
}

void cpu_run(const FactoredMoments& op, const CpuContext& context) {
  const StepState& state = *op.state;
  if (state.skip != 0) return;
  const double share = std::pow(static_cast<double>(state.updates), op.beta2_decay);
  const double squared_scale = static_cast<double>(state.gradient_scale) * static_cast<double>(state.gradient_scale);
  const auto* const sums = op.sums.as<const double>();
  // Updates the moments of `count` rows or columns, each of whose sums has `summed` elements. RETURNS the moments' sum.
  const auto advance = [&](float* moments, const double* of_squares, int64_t count, int64_t summed) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double mean = squared_scale * of_squares[i] / static_cast<double>(summed) + op.eps;
      moments[i] = static_cast<float>((1 - share) * static_cast<double>(moments[i]) + share * mean);
      sum += static_cast<double>(moments[i]);
    }
    return sum;
  };
  parallel_shares(context.num_threads, op.num_matrices, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const FactoredMatrix& matrix = op.matrices[i];
      const double of_rows =
          advance(op.rows.as<float>() + matrix.row_moments, sums + matrix.row_sums, matrix.rows, matrix.cols);
      advance(op.cols.as<float>() + matrix.col_moments, sums + matrix.col_sums, matrix.cols, matrix.rows);
      op.means.as<double>()[i] = of_rows / static_cast<double>(matrix.rows);
    }
  });
}

void cpu_run(const FactoredDirection& op, const CpuContext& context) {
  if (op.state->skip != 0) return;
  const auto scale = static_cast<double>(op.state->gradient_scale);
  for (int64_t i = 0; i < op.num_ranges; ++i) {
    const MatrixRange& range = op.ranges[i];
    const FactoredMatrix& matrix = op.matrices[range.matrix];
    const double mean = op.means.as<const double>()[range.matrix];
    parallel_shares(context.num_threads, range.num_rows(), [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        const MatrixRange::Row part = range.part_of_row(row);
        const float moment = op.rows.as<const float>()[matrix.row_moments + part.row];
        const auto factor = static_cast<float>(scale / std::sqrt(static_cast<double>(moment) / mean));
        context.kernels->divide_by_roots(op.gradients.as<float>() + part.offset, factor,
                                         op.cols.as<const float>() + matrix.col_moments + part.col, part.count);
      }
    });
  }
}

}  // namespace gptrain::ops
