// Operators of reductions over ranks.
#pragma once

#include <cstdint>

namespace gptrain::inline comm {

enum class ReduceOp : uint8_t { sum, max, min };

}  // namespace gptrain::comm
