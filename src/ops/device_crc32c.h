// CRC-32C of what lies in a backend's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/backend.h"

namespace gptrain {

// Goes on from the CRC `before` (0 at the start). Waits for the device. Error(device).
uint32_t device_crc32c(Backend& backend, const void* buffer, int64_t bytes, uint32_t before);

}  // namespace gptrain
