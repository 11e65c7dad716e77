#include "base/sha256.h"

#include <array>
#include <sodium.h>

#include "base/append.h"

namespace gptrain::inline base {

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest{};
  crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  std::string text;
  for (const unsigned char byte : digest) append(text, "{:02x}", byte);
  return text;
}

}  // namespace gptrain::base
