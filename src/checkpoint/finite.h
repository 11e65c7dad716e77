// Numbers that are NaN or infinite, which only a run that has diverged holds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace gptrain::inline checkpoint {

enum class NotFinite : uint8_t { refused, allowed };

// Returns the number of values that are NaN or infinite. Values of one byte are codes, and always finite.
int64_t count_not_finite(const std::byte* data, int64_t count, DType dtype);

}  // namespace gptrain::checkpoint
