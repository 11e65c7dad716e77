// The view that ops take as operand: a matrix whose rows are contiguous.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace gptrain::inline base {

// A view that owns nothing. Row r starts `r * stride` elements after `data`. A vector is a matrix of one row. A
// default-constructed Matrix means "not given" where an operand is optional. On the `plan` backend `data` is an address
// that is never read or written.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  // elements from one row to the next, >= cols

  Matrix() = default;
  Matrix(void* data_, DType dtype_, int64_t rows_, int64_t cols_) : Matrix(data_, dtype_, rows_, cols_, cols_) {}
  Matrix(void* data_, DType dtype_, int64_t rows_, int64_t cols_, int64_t stride_)
      : data(data_), dtype(dtype_), rows(rows_), cols(cols_), stride(stride_) {}

  bool given() const { return rows > 0; }
  int64_t count() const { return rows * cols; }
  int64_t bytes() const { return count() * dtype_bytes(dtype); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }

  // Views of rows [first, first + n) and of columns [first, first + n).
  Matrix row_range(int64_t first, int64_t n) const {
    return {static_cast<std::byte*>(data) + first * stride * dtype_bytes(dtype), dtype, n, cols, stride};
  }
  Matrix column_range(int64_t first, int64_t n) const {
    return {static_cast<std::byte*>(data) + first * dtype_bytes(dtype), dtype, rows, n, stride};
  }
};

}  // namespace gptrain::base
