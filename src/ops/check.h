// Checks of an op's shapes, dtypes and options, the same for every backend. Contents of memory are not looked at.
#pragma once

#include <cstdint>
#include <string_view>

#include "ops/every_op.h"

namespace gptrain {

// Each throws std::logic_error, naming the op and the operand, when the op is not as `ops.h` says.
#define GPTRAIN_DECLARE_CHECK(Op) void check(const Op& op);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_CHECK)
#undef GPTRAIN_DECLARE_CHECK

// Throws Error(device) when a backend has less scratch memory than an op needs there.
void require_scratch(std::string_view op, int64_t needed, int64_t available);

}  // namespace gptrain
