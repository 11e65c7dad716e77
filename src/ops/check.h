// Checks of an op's operands and options, the same for every backend. The checks read no operand's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/operands.h"

namespace gptrain::inline ops {

// THROWS std::logic_error, naming the op, at the first fault.
class Checker final : public OperandVisitor {
 public:
  // `missing`: a dtype that the backend does not support; none: it supports all.
  explicit Checker(std::string_view op, std::optional<DType> missing = {}) : op_(op), missing_(missing) {}

  void operand(std::string_view name, const Matrix& matrix, Access access, const Form& form) override;
  void require(bool holds, std::string_view rule) override;

 private:
  std::string_view op_;
  std::optional<DType> missing_;
};

// THROWS std::logic_error, naming the op and the operand, if the op violates the rules of ops.h. `missing` as in
// Checker.
template <typename Op>
void check(const Op& op, std::optional<DType> missing = {}) {
  Checker checker(Op::name, missing);
  for_each_operand(op, checker);
}

// THROWS Error(device) if the backend's scratch memory, `available` bytes, is smaller than the `needed` bytes.
void require_scratch(std::string_view op, int64_t needed, int64_t available);

}  // namespace gptrain::ops
