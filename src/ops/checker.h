// What the checks of ops are made of.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <stdexcept>
#include <string_view>

#include "base/dtype.h"
#include "base/fp8.h"
#include "ops/ops.h"

namespace gptrain {

// Checks of one op; a failing one throws with the op's name.
class Checker {
 public:
  explicit Checker(std::string_view op) : op_(op) {}

  void require(bool holds, std::string_view what) const {
    if (!holds) throw std::logic_error(fmt::format("{}: {}", op_, what));
  }

  void matrix(std::string_view operand, const Matrix& matrix, DType dtype, int64_t rows, int64_t cols) const {
    if (matrix.dtype != dtype) {
      throw std::logic_error(
          fmt::format("{}: {} is {}, must be {}", op_, operand, dtype_name(matrix.dtype), dtype_name(dtype)));
    }
    if (matrix.rows != rows || matrix.cols != cols) {
      throw std::logic_error(
          fmt::format("{}: {} is [{}, {}], must be [{}, {}]", op_, operand, matrix.rows, matrix.cols, rows, cols));
    }
    layout(operand, matrix);
  }

  void optional(std::string_view operand, const Matrix& view, DType dtype, int64_t rows, int64_t cols) const {
    if (view.given()) matrix(operand, view, dtype, rows, cols);
  }

  // At least `rows` rows.
  void table(std::string_view operand, const Matrix& view, DType dtype, int64_t rows, int64_t cols) const {
    if (view.rows < rows) {
      throw std::logic_error(fmt::format("{}: {} has {} rows, needs {}", op_, operand, view.rows, rows));
    }
    matrix(operand, view, dtype, view.rows, cols);
  }

  // Given, with elements, and of dtype f32, bf16 or f16.
  void real(std::string_view operand, const Matrix& view) const {
    if (view.dtype != DType::f32 && view.dtype != DType::bf16 && view.dtype != DType::f16) {
      throw std::logic_error(
          fmt::format("{}: {} is {}, must be f32, bf16 or f16", op_, operand, dtype_name(view.dtype)));
    }
    if (view.rows <= 0 || view.cols <= 0) throw std::logic_error(fmt::format("{}: {} is empty", op_, operand));
    layout(operand, view);
  }

  void sequences(int64_t num_rows, int64_t sequence_length) const {
    if (sequence_length <= 0 || num_rows % sequence_length != 0) {
      throw std::logic_error(
          fmt::format("{}: {} rows are not whole sequences of {} tokens", op_, num_rows, sequence_length));
    }
  }

  void dropout(const Dropout& dropout, int64_t sequence_length) const {
    require(dropout.p >= 0 && dropout.p < 1, "dropout probability is not in [0, 1)");
    require(dropout.p == 0 || dropout.sample_ids != nullptr, "dropout has no sample_ids");
    require(dropout.p == 0 || sequence_length > 0, "sequence_length is not positive");
    require(dropout.first_row >= 0 && dropout.first_head >= 0, "dropout begins before the first row or head");
  }

  void vocabulary_slice(int64_t first_token, int64_t num_tokens, int64_t rows) const {
    require(num_tokens == 0 ? first_token == 0 : first_token >= 0 && first_token + rows <= num_tokens,
            "the token table is no slice of the vocabulary");
  }

  // As tensor cores take an operand of FP8 products: sizes in multiples of 16, every row at a multiple of 16 bytes.
  void tiles(std::string_view operand, const Matrix& view) const {
    constexpr int64_t multiple = 16;
    if (!view.given()) return;
    const int64_t stride_bytes = view.stride * dtype_bytes(view.dtype);
    const bool vector = view.rows == 1;
    if ((!vector && view.rows % multiple != 0) || view.cols % multiple != 0 || (!vector && stride_bytes % 16 != 0) ||
        reinterpret_cast<uintptr_t>(view.data) % 16 != 0) {
      throw std::logic_error(fmt::format("{}: {} [{}, {}] with rows {} bytes apart is not in multiples of 16", op_,
                                         operand, view.rows, view.cols, stride_bytes));
    }
  }

  void fp8(std::string_view operand, const Matrix& view) const {
    if (!is_fp8(view.dtype))
      throw std::logic_error(
          fmt::format("{}: {} is {}, must be f8e4m3 or f8e5m2", op_, operand, dtype_name(view.dtype)));
    if (view.rows <= 0 || view.cols <= 0) throw std::logic_error(fmt::format("{}: {} is empty", op_, operand));
    layout(operand, view);
    tiles(operand, view);
  }

  // The amax of an output, where it is asked for.
  void amax(const Matrix& amax, const Matrix& output) const {
    if (!amax.given()) return;
    matrix("amax", amax, DType::f32, 1, amax_parts);
    tiles("amax", amax);
    require(output.dtype == DType::bf16, "an amax is had of bf16 only");
  }

  void separate(std::string_view what, const Matrix& a, const Matrix& b) const {
    require(a.data != b.data || a.data == nullptr, what);
  }

 private:
  void layout(std::string_view operand, const Matrix& view) const {
    if (view.stride < view.cols && view.rows > 1) {
      throw std::logic_error(
          fmt::format("{}: {} has a stride of {} for {} columns", op_, operand, view.stride, view.cols));
    }
  }

  std::string_view op_;
};

}  // namespace gptrain
