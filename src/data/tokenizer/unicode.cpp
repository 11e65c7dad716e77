#include "data/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace gptrain::inline data {
namespace {

constexpr uint32_t class_runs[] = {
#include "data/tokenizer/unicode_classes.inc"
};

struct Property {
  std::string_view name;
  std::vector<uint32_t> ends;  // first and last code point of each range
};

const std::vector<Property>& properties() {
  static const std::vector<Property> known = {
#include "data/tokenizer/unicode_properties.inc"
  };
  return known;
}

std::vector<uint8_t> make_classes() {
  std::vector<uint8_t> classes(num_code_points + 1);
  for (size_t i = 0; i < std::size(class_runs); ++i) {
    const uint32_t end = i + 1 < std::size(class_runs) ? class_runs[i + 1] >> 4 : num_code_points;
    std::fill(classes.begin() + (class_runs[i] >> 4), classes.begin() + end, static_cast<uint8_t>(class_runs[i] & 15));
  }
  return classes;
}

}  // namespace

const uint8_t* character_classes() {
  static const std::vector<uint8_t> classes = make_classes();
  return classes.data();
}

// See Unicode 16, table 3-7.
void append_utf8(std::string& text, uint32_t code) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Skips ASCII eight bytes at a time.
    if (at + 8 <= text.size()) {
      uint64_t word = 0;
      std::copy_n(text.data() + at, 8, reinterpret_cast<char*>(&word));
      if ((word & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    const DecodedCharacter character = decode_utf8(text.substr(at, longest_utf8));
    if (character.code_point == num_code_points) return at;
    at += character.length;
  }
  return at;
}

namespace {

// Returns the length of the maximal ill-formed part at the start of `text` (Unicode 16, table 3-7), at least 1.
// REQUIRES: `text` does not start with a character.
size_t ill_formed_length(std::string_view text) {
  size_t length = 1;
  while (length < text.size() && begins_utf8(text.substr(0, length + 1))) ++length;
  return length;
}

}  // namespace

size_t whole_characters_size(std::string_view text) {
  for (size_t length = std::min(longest_utf8 - 1, text.size()); length > 0; --length)
    if (begins_utf8(text.substr(text.size() - length))) return text.size() - length;
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t valid = find_invalid_utf8(text);
    result += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    append_utf8(result, 0xFFFD);
    text.remove_prefix(ill_formed_length(text));
  }
  return result;
}

std::vector<std::pair<uint32_t, uint32_t>> ranges_of_classes(uint32_t classes) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  for (size_t i = 0; i < std::size(class_runs); ++i) {
    if ((classes >> (class_runs[i] & 15) & 1) == 0) continue;
    const uint32_t first = class_runs[i] >> 4;
    const uint32_t last = (i + 1 < std::size(class_runs) ? class_runs[i + 1] >> 4 : num_code_points) - 1;
    if (!ranges.empty() && ranges.back().second + 1 == first) {
      ranges.back().second = last;
    } else {
      ranges.emplace_back(first, last);
    }
  }
  return ranges;
}

std::vector<std::pair<uint32_t, uint32_t>> ranges_of_unicode_property(std::string_view name) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  for (const Property& property : properties()) {
    if (property.name != name) continue;
    for (size_t i = 0; i < property.ends.size(); i += 2) ranges.emplace_back(property.ends[i], property.ends[i + 1]);
  }
  return ranges;
}

}  // namespace gptrain::data
