#include "ops/check.h"

#include <fmt/format.h>
#include <stdexcept>

#include "base/error.h"
#include "base/fp8.h"

namespace gptrain::inline ops {
namespace {

bool is_real(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

// RETURNS why the matrix violates the form, for messages; empty if it does not.
std::string fault_of(const Matrix& matrix, const Form& form) {
  const std::string_view dtype = dtype_name(matrix.dtype);
  if (form.types == Form::Types::one && matrix.dtype != form.dtype)
    return fmt::format("is {}, must be {}", dtype, dtype_name(form.dtype));
  if (form.types == Form::Types::real && !is_real(matrix.dtype))
    return fmt::format("is {}, must be f32, bf16 or f16", dtype);
  if (form.types == Form::Types::fp8 && !is_fp8(matrix.dtype))
    return fmt::format("is {}, must be f8e4m3 or f8e5m2", dtype);
  if (matrix.rows < form.least_rows) return fmt::format("has {} rows, needs {}", matrix.rows, form.least_rows);
  const int64_t rows = form.rows == Form::any ? matrix.rows : form.rows;
  const int64_t cols = form.cols == Form::any ? matrix.cols : form.cols;
  if (matrix.rows != rows || matrix.cols != cols)
    return fmt::format("is [{}, {}], must be [{}, {}]", matrix.rows, matrix.cols, rows, cols);
  if ((form.rows == Form::any && rows <= 0) || (form.cols == Form::any && cols <= 0)) return "is empty";
  if (matrix.stride < cols && rows > 1) return fmt::format("has a stride of {} for {} columns", matrix.stride, cols);
  if (!form.in_tiles) return "";
  constexpr int64_t multiple = 16;
  const int64_t stride_bytes = matrix.stride * dtype_bytes(matrix.dtype);
  const bool several_rows = rows > 1;
  if ((several_rows && (rows % multiple != 0 || stride_bytes % 16 != 0)) || cols % multiple != 0 ||
      reinterpret_cast<uintptr_t>(matrix.data) % 16 != 0)
    return fmt::format("[{}, {}] with rows {} bytes apart is not in multiples of 16", rows, cols, stride_bytes);
  return "";
}

}  // namespace

void Checker::operand(std::string_view name, const Matrix& matrix, Access, const Form& form) {
  if (form.optional && !matrix.given()) return;
  std::string fault = fault_of(matrix, form);
  if (missing_ == matrix.dtype) fault = fmt::format("is {}, which this backend does not have", dtype_name(*missing_));
  if (!fault.empty()) throw std::logic_error(fmt::format("{}: {} {}", op_, name, fault));
}

void Checker::require(bool holds, std::string_view rule) {
  if (!holds) throw std::logic_error(fmt::format("{}: {}", op_, rule));
}

void require_scratch(std::string_view op, int64_t needed, int64_t available) {
  if (needed > available)
    throw Error(ExitCode::device, "{} needs {} bytes of scratch memory and has {}", op, needed, available);
}

}  // namespace gptrain::ops
