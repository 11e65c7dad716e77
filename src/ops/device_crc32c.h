// CRC-32C of bytes in a backend's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/backend.h"

namespace gptrain::inline ops {

// RETURNS the CRC of the bytes appended to data with CRC `before` (0: none). Waits for the device. THROWS
// Error(device).
uint32_t device_crc32c(Backend& backend, const void* buffer, int64_t bytes, uint32_t before);

}  // namespace gptrain::ops
