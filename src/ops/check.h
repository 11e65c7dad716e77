// Checks of an op's shapes, dtypes and options, the same for every backend. Contents of memory are not looked at.
#pragma once

#include "ops/ops.h"

namespace gptrain {

// Each throws std::logic_error, naming the op and the operand, when the op is not as `ops.h` says.
#define GPTRAIN_DECLARE_CHECK(Op) void check(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_CHECK)
#undef GPTRAIN_DECLARE_CHECK

}  // namespace gptrain
