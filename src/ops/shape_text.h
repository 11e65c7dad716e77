// An op's sizes and dtypes in one line, for profiles: what tells two calls of the same op apart.
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>

#include "ops/every_op.h"

namespace gptrain {

// The letters are those of ops.h: "N=8192 in=768 out=2304 bf16", "B=8 T=1024 H=12 G=12 D=64 bf16".
#define GPTRAIN_DECLARE_SHAPE_TEXT(Op) std::string shape_text(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_SHAPE_TEXT)
#undef GPTRAIN_DECLARE_SHAPE_TEXT

// A warning that a GPU's own kernels compute attention that its library might have. `refusal`: why it does not.
template <typename Op>
std::string own_kernels_warning(const Op& op, std::string_view refusal) {
  return fmt::format("{} {}: {}; own kernels compute it", Op::name, shape_text(op), refusal);
}

}  // namespace gptrain
