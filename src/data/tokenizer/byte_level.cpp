#include <array>

#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

constexpr size_t num_characters = 0x144;  // the alphabet's largest is U+0143

struct Alphabet {
  std::array<uint32_t, 256> of_byte{};
  std::array<int, num_characters> of_character{};

  Alphabet() {
    of_character.fill(-1);
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      of_byte[byte] = prints ? byte : next++;
      of_character[of_byte[byte]] = static_cast<int>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, alphabet().of_byte[static_cast<uint8_t>(byte)]);
  return text;
}

bool from_byte_level(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (!text.empty()) {
    const DecodedCharacter character = decode_utf8(text);
    if (character.code_point >= num_characters || alphabet().of_character[character.code_point] < 0) return false;
    bytes += static_cast<char>(alphabet().of_character[character.code_point]);
    text.remove_prefix(character.length);
  }
  return true;
}

}  // namespace gptrain::data
