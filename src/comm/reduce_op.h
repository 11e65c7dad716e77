// How a reduction combines what ranks have.
#pragma once

#include <cstdint>

namespace gptrain {

enum class ReduceOp : uint8_t { sum, max, min };

}  // namespace gptrain
