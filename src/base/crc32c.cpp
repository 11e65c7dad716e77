#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace gptrain::inline base {
namespace {

static_assert(std::endian::native == std::endian::little, "bytes are folded as little-endian words");

// tables[k][b] is the checksum of byte b followed by k zero bytes, so that eight bytes are folded by eight look-ups.
constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0U);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
    }
  }
  return tables;
}

constexpr auto tables = make_tables();

uint64_t load_word(const unsigned char* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const void* data, size_t bytes, uint32_t crc) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) state = _mm_crc32_u64(state, load_word(at));
  auto tail = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++at) tail = _mm_crc32_u8(tail, *at);
  return ~tail;
}
#endif

using Function = uint32_t (*)(const void*, size_t, uint32_t);

Function fastest() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#endif
  return crc32c_table;
}

}  // namespace

uint32_t crc32c_table(const void* data, size_t bytes, uint32_t crc) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    const uint64_t word = load_word(at) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) state ^= tables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; bytes > 0; --bytes, ++at) state = (state >> 8) ^ tables[0][(state ^ *at) & 0xFF];
  return ~state;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t crc) {
  static const Function function = fastest();
  return function(data, bytes, crc);
}

}  // namespace gptrain::base
