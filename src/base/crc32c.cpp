#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace gptrain {
namespace {

constexpr uint32_t kReversedPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) ? kReversedPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const void* data, size_t bytes, uint32_t crc) {
  const auto* byte = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), byte += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, byte, sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++byte) narrow = _mm_crc32_u8(narrow, *byte);
  return ~narrow;
}
#endif

using Crc32c = uint32_t (*)(const void*, size_t, uint32_t);

Crc32c fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#endif
  return crc32c_table;
}

}  // namespace

uint32_t crc32c_table(const void* data, size_t bytes, uint32_t crc) {
  const auto* byte = static_cast<const unsigned char*>(data);
  uint32_t state = ~crc;
  for (; bytes > 0; --bytes, ++byte) state = (state >> 8) ^ kTable[(state ^ *byte) & 0xff];
  return ~state;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
  static const Crc32c implementation = fastest();
  return implementation(data, bytes, crc);
}

}  // namespace gptrain
