#include "step/arena_fill.h"

#include <algorithm>

#include "base/philox.h"

namespace gptrain::inline step {
namespace {

constexpr int64_t most_numbers = (int64_t{1} << 21) - 9;  // a prime
constexpr int64_t number_bytes = 2;
constexpr int64_t zeros_bytes = int64_t{4} << 20;

}  // namespace

std::vector<std::byte> numbers_for_products(uint32_t key, int64_t most_bytes) {
  constexpr uint32_t use = 2;  // second word of the Philox key, which no random number of a run has
  const int64_t count = std::min(most_numbers, most_bytes / number_bytes);
  std::vector<std::byte> numbers;
  numbers.reserve(count * number_bytes);
  for (int64_t i = 0; i < count; i += 4) {
    const auto words = philox({key, use}, {static_cast<uint32_t>(i / 4), 0, 0, 0});
    for (size_t j = 0; j < words.size() && i + static_cast<int64_t>(j) < count; ++j) {
      numbers.push_back(static_cast<std::byte>(words[j] & 0xbf));
      numbers.push_back(static_cast<std::byte>((words[j] & 0x100) != 0 ? 0x3f : 0xbf));
    }
  }
  return numbers;
}

void fill_memory(Backend& backend, SideQueue* copy_queue, std::byte* memory, int64_t bytes,
                 const std::vector<std::byte>& pattern) {
  const auto length = static_cast<int64_t>(pattern.size());
  for (int64_t filled = 0; filled < bytes;) {
    if (filled == 0 || copy_queue == nullptr) {
      const int64_t more = std::min(length, bytes - filled);
      backend.upload(memory + filled, pattern.data(), more);
      filled += more;
    } else {
      const int64_t more = std::min(filled, bytes - filled);
      copy_queue->copy_among_ops(memory + filled, memory, more);
      filled += more;
    }
  }
}

void zero_memory(Backend& backend, SideQueue* copy_queue, std::byte* memory, int64_t bytes) {
  fill_memory(backend, copy_queue, memory, bytes, std::vector<std::byte>(std::min(bytes, zeros_bytes)));
}

}  // namespace gptrain::step
