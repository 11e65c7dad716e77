// Checks of an op's operands and options, the same for every backend. Contents of memory are not looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "ops/operands.h"

namespace gptrain {

// Throws std::logic_error, naming the op, at the first fault.
class Checker final : public OperandVisitor {
 public:
  // `missing`: a dtype that the backend does not have.
  explicit Checker(std::string_view op, std::optional<DType> missing = {}) : op_(op), missing_(missing) {}

  void operand(std::string_view name, const Matrix& matrix, Access access, const Form& form) override;
  void require(bool holds, std::string_view rule) override;

 private:
  std::string_view op_;
  std::optional<DType> missing_;
};

// Throws std::logic_error, naming the op and the operand, when the op is not as `ops.h` says.
template <typename Op>
void check(const Op& op, std::optional<DType> missing = {}) {
  Checker checker(Op::name, missing);
  for_each_operand(op, checker);
}

// Throws Error(device) when a backend has less scratch memory than an op needs there.
void require_scratch(std::string_view op, int64_t needed, int64_t available);

}  // namespace gptrain
