#include "ops/cpu/kernels/dropout.h"
#include "ops/cpu/kernels/kernels.h"

namespace gptrain::inline ops::GPTRAIN_ISA {
namespace {

// RETURNS the token's row in a slice of the table, or -1.
inline int64_t row_of_token(int32_t token, int64_t first_token, int64_t rows) {
  const int64_t row = token - first_token;
  return row >= 0 && row < rows ? row : -1;
}

template <typename R, typename C>
void lookup(const C* token, float scale, const C* position, R* x, int64_t count) {
  if (position == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(x + i, load(token + i) * scale);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(x + i, load(token + i) * scale + load(position + i));
  }
}

template <typename R, typename C>
void lookup_with_dropout(const C* token, float scale, const C* position, const float* factors, R* x, int64_t count) {
  if (position == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(x + i, load(token + i) * scale * factors[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(x + i, (load(token + i) * scale + load(position + i)) * factors[i]);
  }
}

// Writes the row of a token in another slice: its position's embedding, or zero.
template <typename R, typename C>
void without_token(const EmbeddingForward& op, const C* position, int64_t row, R* x) {
  const int64_t cols = op.x.cols;
  if (position == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < cols; ++i) store(x + i, 0.0F);
    return;
  }
  if (op.dropout.p > 0) {
    for_dropout_spans(op.dropout, row, op.token_rows, 0, cols, [&](int64_t at, int64_t count, const float* factors) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) store(x + at + i, load(position + at + i) * factors[i]);
    });
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < cols; ++i) store(x + i, load(position + i));
}

// sums += scale * dropout'(dx of `row`) in columns [first, end).
template <typename R>
void add_row(const EmbeddingBackward& op, float scale, int64_t row, int64_t first, int64_t end, float* sums) {
  const R* dx = row_of<R>(op.dx, row);
  if (op.dropout.p > 0) {
    for_dropout_spans(op.dropout, row, op.token_rows, first, end, [&](int64_t at, int64_t count, const float* factors) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) sums[at + i] += load(dx + at + i) * scale * factors[i];
    });
    return;
  }
#pragma omp simd
  for (int64_t i = first; i < end; ++i) sums[i] += load(dx + i) * scale;
}

}  // namespace

void embedding_forward(const EmbeddingForward& op, int64_t first_row, int64_t end_row) {
  with_type(op.x.dtype, [&](auto residual_type) {
    using R = decltype(residual_type);
    with_type(op.token_table.dtype, [&](auto compute_type) {
      using C = decltype(compute_type);
      for (int64_t row = first_row; row < end_row; ++row) {
        const C* position =
            op.position_table.rows > 0 ? row_of<C>(op.position_table, op.token_rows.token(row)) : nullptr;
        R* x = row_of<R>(op.x, row);
        const int64_t token_row = row_of_token(op.tokens[row], op.first_token, op.token_table.rows);
        if (token_row < 0) {
          without_token(op, position, row, x);
          continue;
        }
        const C* token = row_of<C>(op.token_table, token_row);
        const auto scale = static_cast<float>(op.token_scale);
        if (op.dropout.p > 0) {
          for_dropout_spans(op.dropout, row, op.token_rows, 0, op.x.cols,
                            [&](int64_t at, int64_t count, const float* factors) {
                              lookup_with_dropout(token + at, scale, position == nullptr ? nullptr : position + at,
                                                  factors, x + at, count);
                            });
        } else {
          lookup(token, scale, position, x, op.x.cols);
        }
      }
    });
  });
}

void embedding_backward_tokens(const EmbeddingBackward& op, int64_t token_class, int64_t num_classes,
                               int64_t first_column, int64_t end_column) {
  with_type(op.dx.dtype, [&](auto type) {
    for (int64_t row = 0; row < op.dx.rows; ++row) {
      if (op.tokens[row] % num_classes != token_class) continue;
      const int64_t token_row = row_of_token(op.tokens[row], op.first_token, op.d_token_table.rows);
      if (token_row < 0) continue;
      add_row<decltype(type)>(op, static_cast<float>(op.token_scale), row, first_column, end_column,
                              row_of<float>(op.d_token_table, token_row));
    }
  });
}

void embedding_backward_positions(const EmbeddingBackward& op, int64_t first_row, int64_t end_row) {
  const int64_t cols = op.dx.cols;
  with_type(op.dx.dtype, [&](auto type) {
    for (int64_t position = first_row; position < end_row; ++position) {
      float* sums = row_of<float>(op.d_position_table, position);
      if (!op.accumulate_position) {
#pragma omp simd
        for (int64_t i = 0; i < cols; ++i) sums[i] = 0;
      }
      const int64_t first = op.token_rows.row(position);
      if (first < 0) continue;
      for (int64_t row = first; row < op.dx.rows; row += op.token_rows.length)
        add_row<decltype(type)>(op, 1.0F, row, 0, cols, sums);
    }
  });
}

}  // namespace gptrain::ops::GPTRAIN_ISA
