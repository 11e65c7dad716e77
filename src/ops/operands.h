// Descriptions of each op's operands: their use by the op, their required form, and the op's other rules. Checks,
// footprints' bytes, events' texts, and tests that read-only operands stay unchanged all use these descriptions.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "base/matrix.h"
#include "ops/ops.h"

namespace gptrain::inline ops {

// Use of an operand by an op. Footprints do not count uncounted_ uses: the addresses depend on the data, or the operand
// is small.
enum class Access : uint8_t { read, write, update, uncounted_read, uncounted_write };
constexpr bool is_written(Access access) { return access != Access::read && access != Access::uncounted_read; }
constexpr Access summed(bool accumulate) { return accumulate ? Access::update : Access::write; }

// Required dtype, shape and alignment of an operand.
struct Form {
  enum class Types : uint8_t { one, real, fp8 };  // one: `dtype`; real: f32, bf16 or f16
  static constexpr int64_t any = -1;              // any size above 0

  Types types = Types::one;
  DType dtype = DType::f32;  // used with Types::one
  int64_t rows = any, cols = any;
  int64_t least_rows = 0;
  bool optional = false;  // the operand need not be given
  bool in_tiles = false;  // for tensor cores: sizes are multiples of 16 elements, rows begin at multiples of 16 bytes
};

namespace forms {

constexpr Form exactly(DType dtype, int64_t rows, int64_t cols) { return {.dtype = dtype, .rows = rows, .cols = cols}; }
constexpr Form vector(DType dtype, int64_t count) { return exactly(dtype, 1, count); }
inline Form like(const Matrix& other) { return exactly(other.dtype, other.rows, other.cols); }
constexpr Form real(int64_t rows = Form::any, int64_t cols = Form::any) {
  return {.types = Form::Types::real, .rows = rows, .cols = cols};
}
constexpr Form fp8(int64_t rows = Form::any, int64_t cols = Form::any) {
  return {.types = Form::Types::fp8, .rows = rows, .cols = cols, .in_tiles = true};
}
constexpr Form table(DType dtype, int64_t least_rows, int64_t cols) {
  return {.dtype = dtype, .cols = cols, .least_rows = least_rows};
}
constexpr Form optional(Form form) {
  form.optional = true;
  return form;
}
constexpr Form in_tiles(Form form) {
  form.in_tiles = true;
  return form;
}

}  // namespace forms

class OperandVisitor {
 public:
  virtual ~OperandVisitor() = default;
  virtual void operand(std::string_view name, const Matrix& matrix, Access access, const Form& form) = 0;
  virtual void require(bool /*holds*/, std::string_view /*rule*/) {}

  void reads(std::string_view name, const Matrix& matrix, const Form& form) {
    operand(name, matrix, Access::read, form);
  }
  // REQUIRES: the op's results do not depend on the old content of the matrix.
  void writes(std::string_view name, const Matrix& matrix, const Form& form) {
    operand(name, matrix, Access::write, form);
  }
  void updates(std::string_view name, const Matrix& matrix, const Form& form) {
    operand(name, matrix, Access::update, form);
  }
  void looks_up(std::string_view name, const Matrix& matrix, const Form& form) {
    operand(name, matrix, Access::uncounted_read, form);
  }
};

// The first operand visited is the one whose shape distinguishes calls of the op (see shape_text).
#define GPTRAIN_DECLARE_OPERANDS(Op) void for_each_operand(const Op& op, OperandVisitor& visit);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_OPERANDS)
#undef GPTRAIN_DECLARE_OPERANDS

}  // namespace gptrain::ops
