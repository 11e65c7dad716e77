// CRC-32C (Castagnoli), the checksum of TensorBoard event files and of checkpoint slices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptrain::inline base {

// Returns the checksum of `bytes` bytes. Pieces chain: crc32c(b, nb, crc32c(a, na)) is the checksum of a followed by b.
// Uses the processor's CRC instruction if it has one, else a table; both give the same value.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// The table version alone, which a test compares with crc32c.
uint32_t crc32c_table(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace gptrain::base
