#include "ops/device_crc32c.h"

#include <algorithm>
#include <vector>

#include "base/crc32c.h"

namespace gptrain::inline ops {

uint32_t device_crc32c(Backend& backend, const void* buffer, int64_t bytes, uint32_t before) {
  constexpr int64_t piece = int64_t{4} << 20;
  const auto* const start = static_cast<const std::byte*>(buffer);
  std::vector<std::byte> host(std::min(bytes, piece));
  for (int64_t first = 0; first < bytes; first += piece) {
    const int64_t count = std::min(piece, bytes - first);
    backend.download(host.data(), start + first, count);
    backend.synchronize();
    before = crc32c(host.data(), count, before);
  }
  return before;
}

}  // namespace gptrain::ops
