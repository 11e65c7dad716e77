// CRC-32C (Castagnoli), the checksum of TensorBoard event files and of checkpoint slices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gptrain {

// The checksum of `bytes` bytes. Pieces chain: crc32c(b, nb, crc32c(a, na)) is the checksum of a followed by b. Uses
// the processor's CRC instruction where there is one, a table elsewhere; both give the same value.
uint32_t crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// The table version alone, so that a test can hold the two against each other.
uint32_t crc32c_table(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace gptrain
