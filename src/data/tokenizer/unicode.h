// Unicode for tokenizers: UTF-8, classes of code points, normalization forms C and KC. Has the reference tokenizers'
// tables (tools/generate/make_unicode_tables.py), so that the system's Unicode version has no effect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace gptrain::inline data {

// General categories that pre-tokenizers distinguish: letters by case, marks, numbers, and \s with CR and LF separate.
enum class CharacterClass : uint8_t {
  other,
  upper,     // Lu
  title,     // Lt
  lower,     // Ll
  modifier,  // Lm
  letter,    // Lo
  mark,      // M
  number,    // N
  newline,   // CR, LF
  space,     // the rest of \s
};

// Bit masks of classes.
constexpr uint32_t class_bit(CharacterClass value) { return 1U << static_cast<uint32_t>(value); }
constexpr uint32_t letter_classes = class_bit(CharacterClass::upper) | class_bit(CharacterClass::title) |
                                    class_bit(CharacterClass::lower) | class_bit(CharacterClass::modifier) |
                                    class_bit(CharacterClass::letter);
constexpr uint32_t mark_classes = class_bit(CharacterClass::mark);
constexpr uint32_t number_classes = class_bit(CharacterClass::number);
constexpr uint32_t newline_classes = class_bit(CharacterClass::newline);
constexpr uint32_t space_classes = class_bit(CharacterClass::newline) | class_bit(CharacterClass::space);

// Returns the table of each code point's CharacterClass, which the first call builds.
const uint8_t* character_classes();

void append_utf8(std::string& text, uint32_t code_point);

// Returns the offset of the first byte that is not part of a UTF-8 character; text.size() if there is none. Surrogates,
// overlong forms and code points above U+10FFFF are invalid.
size_t find_invalid_utf8(std::string_view text);
// Returns the size of `text` without an incomplete character at its end.
size_t whole_characters_size(std::string_view text);
// Replaces each maximal ill-formed part with U+FFFD, as WHATWG and Python's errors="replace" do.
std::string replace_invalid_utf8(std::string_view text);

// Converts to normalization form C (UAX 15). Returns false, without writing `normalized`, if `text` is in it already.
// Invalid UTF-8 is kept.
bool normalize_nfc(std::string_view text, std::string& normalized);
// Does the same for form KC, which also unifies compatibility variants of characters.
bool normalize_nfkc(std::string_view text, std::string& normalized);

// Returns the code points of a set of classes as ascending ranges, both ends included.
std::vector<std::pair<uint32_t, uint32_t>> ranges_of_classes(uint32_t classes);
// Does the same for a property: P, S, Z, Nd, "word" (\w), or a script such as Han. Returns nothing for other names.
std::vector<std::pair<uint32_t, uint32_t>> ranges_of_unicode_property(std::string_view name);

}  // namespace gptrain::data
