#include "ops/cpu/kernels/residual.h"

#include "ops/cpu/kernels/kernels.h"

namespace gptrain::inline ops::GPTRAIN_ISA {

void residual_add(const ResidualAdd& op, int64_t first_row, int64_t end_row) {
  with_type(op.x.dtype, [&](auto residual_type) {
    using R = decltype(residual_type);
    with_type(op.branch.dtype, [&](auto compute_type) {
      using C = decltype(compute_type);
      for (int64_t row = first_row; row < end_row; ++row)
        add_branch(row_of<const R>(op.x, row), row_of<const C>(op.branch, row), row_of<R>(op.x_out, row), op.x.cols,
                   op.dropout, row, op.token_rows);
    });
  });
}

void branch_backward(const BranchBackward& op, int64_t first_row, int64_t end_row) {
  const int64_t cols = op.dx.cols;
  with_type(op.dx.dtype, [&](auto residual_type) {
    using R = decltype(residual_type);
    with_type(op.d_branch.dtype, [&](auto compute_type) {
      using C = decltype(compute_type);
      for (int64_t row = first_row; row < end_row; ++row) {
        const R* dx = row_of<R>(op.dx, row);
        C* d_branch = row_of<C>(op.d_branch, row);
        if (op.dropout.p > 0) {
          for_dropout_spans(op.dropout, row, op.token_rows, 0, cols,
                            [&](int64_t at, int64_t count, const float* factors) {
#pragma omp simd
                              for (int64_t i = 0; i < count; ++i)
                                store(d_branch + at + i, load(dx + at + i) * factors[i]);
                            });
        } else {
#pragma omp simd
          for (int64_t i = 0; i < cols; ++i) store(d_branch + i, load(dx + i));
        }
      }
    });
  });
}

void cast(const Cast& op, int64_t row, int64_t first_column, int64_t end_column) {
  with_any_type(op.from.dtype, [&](auto from_type) {
    using From = decltype(from_type);
    with_any_type(op.to.dtype, [&](auto to_type) {
      using To = decltype(to_type);
      const From* from = row_of<From>(op.from, row);
      To* to = row_of<To>(op.to, row);
#pragma omp simd
      for (int64_t i = first_column; i < end_column; ++i) store(to + i, load(from + i));
    });
  });
}

void weighted_sum(const WeightedSum& op, float a_factor, int64_t row, int64_t first_column, int64_t end_column) {
  const auto b_factor = static_cast<float>(op.b_factor);
  with_type(op.a.dtype, [&](auto from_type) {
    using From = decltype(from_type);
    with_type(op.to.dtype, [&](auto to_type) {
      using To = decltype(to_type);
      const From* a = row_of<From>(op.a, row);
      To* to = row_of<To>(op.to, row);
      if (op.b.rows == 0) {
#pragma omp simd
        for (int64_t i = first_column; i < end_column; ++i) store(to + i, a_factor * load(a + i));
        return;
      }
      const From* b = row_of<From>(op.b, row);
#pragma omp simd
      for (int64_t i = first_column; i < end_column; ++i)
        store(to + i, a_factor * load(a + i) + b_factor * load(b + i));
    });
  });
}

void add(const Add& op, int64_t row, int64_t first_column, int64_t end_column) {
  float* to = row_of<float>(op.to, row);
  const auto add_row = [&](const auto* from) {
#pragma omp simd
    for (int64_t i = first_column; i < end_column; ++i) to[i] += load(from + i);
  };
  if (op.from.dtype == DType::bf16) return add_row(row_of<bf16>(op.from, row));
  add_row(row_of<float>(op.from, row));
}

}  // namespace gptrain::ops::GPTRAIN_ISA
