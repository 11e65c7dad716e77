// Decodes UTF-8. Inline, as tokenizers call it for every character of a text.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gptrain::inline base {

constexpr uint32_t num_code_points = 0x110000;
constexpr size_t longest_utf8 = 4;  // bytes of a character

struct DecodedCharacter {
  uint32_t code_point;  // num_code_points: not UTF-8; such a byte is a character by itself
  uint32_t length;      // in bytes, at least 1
};

// Decodes the character at the start of `text`. Surrogates, overlong forms and code points above U+10FFFF are not
// UTF-8. REQUIRES: `text` is not empty.
inline DecodedCharacter decode_utf8(std::string_view text) {
  constexpr DecodedCharacter invalid{num_code_points, 1};
  const auto byte = [&](size_t i) { return i < text.size() ? uint32_t{static_cast<uint8_t>(text[i])} : 0U; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2 || lead > 0xF4 || !continues(1)) return invalid;
  if (lead < 0xE0) return {(lead & 0x1FU) << 6 | (byte(1) & 0x3FU), 2};
  if (!continues(2)) return invalid;
  if (lead < 0xF0) {
    const uint32_t code = (lead & 0xFU) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU);
    return code < 0x800 || (code >= 0xD800 && code < 0xE000) ? invalid : DecodedCharacter{code, 3};
  }
  if (!continues(3)) return invalid;
  const uint32_t code = (lead & 7U) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 | (byte(3) & 0x3FU);
  return code < 0x10000 || code >= num_code_points ? invalid : DecodedCharacter{code, 4};
}

// Returns true if a character can begin with all bytes of `text` and has more than these.
inline bool begins_utf8(std::string_view text) {
  if (text.empty() || text.size() >= longest_utf8) return false;
  // Least and greatest bytes that can follow: every begun character ends with the one or the other.
  for (const char following : {'\x80', '\xbf'}) {
    std::array<char, longest_utf8> bytes;
    bytes.fill(following);
    std::copy(text.begin(), text.end(), bytes.begin());
    const DecodedCharacter whole = decode_utf8({bytes.data(), bytes.size()});
    if (whole.code_point != num_code_points && whole.length > text.size()) return true;
  }
  return false;
}

}  // namespace gptrain::base
