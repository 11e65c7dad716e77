// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected): the checksum of checkpoints and of TensorBoard records.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptrain {

// CRC-32C of `bytes` bytes at `data`, continued from `crc`, the checksum of what came before (0: nothing).
// Uses the processor's CRC instruction where there is one.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// The same value from tables only.
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace gptrain
