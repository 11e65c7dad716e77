// What tokenizers know of Unicode: UTF-8, classes of code points, and normalization form C. The tables are those of the
// reference tokenizers (tools/generate/make_unicode_tables.py), not those of a Unicode library of this system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gptrain {

// The general categories that pre-tokenizers tell apart: letters by case, marks, numbers; and \s, with CR and LF apart.
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

// Sets of classes, as bits.
constexpr uint32_t class_bit(CharacterClass value) { return 1U << static_cast<uint32_t>(value); }
constexpr uint32_t letter_classes = class_bit(CharacterClass::upper) | class_bit(CharacterClass::title) |
                                    class_bit(CharacterClass::lower) | class_bit(CharacterClass::modifier) |
                                    class_bit(CharacterClass::letter);
constexpr uint32_t mark_classes = class_bit(CharacterClass::mark);
constexpr uint32_t number_classes = class_bit(CharacterClass::number);
constexpr uint32_t newline_classes = class_bit(CharacterClass::newline);
constexpr uint32_t space_classes = class_bit(CharacterClass::newline) | class_bit(CharacterClass::space);

constexpr uint32_t num_code_points = 0x110000;

// One byte a code point: its CharacterClass. Made at the first call.
const uint8_t* character_classes();

struct DecodedCharacter {
  uint32_t code_point;  // num_code_points where the bytes are not UTF-8; such a byte is a character of its own
  uint32_t length;      // in bytes, at least 1
};
// The character at the start of `text`, which must not be empty.
DecodedCharacter decode_utf8(std::string_view text);
void append_utf8(std::string& text, uint32_t code_point);

// The first byte that is not part of a UTF-8 character (surrogates, overlong forms and what lies past U+10FFFF are
// none); text.size() where there is none.
size_t find_invalid_utf8(std::string_view text);
// The size of `text` without the beginning of a character at its end, whose other bytes may follow.
size_t whole_characters_size(std::string_view text);
// Each maximal ill-formed part becomes U+FFFD, as WHATWG and Python's errors="replace" do it.
std::string replace_invalid_utf8(std::string_view text);

// Normalization form C (UAX 15). False where `text` is in it already: then `normalized` is not written. Bytes that are
// not UTF-8 stay as they are.
bool normalize_nfc(std::string_view text, std::string& normalized);
// The same for form KC, in which characters that only look otherwise are one.
bool normalize_nfkc(std::string_view text, std::string& normalized);

// The code points of a set of classes as ranges, both ends included, ascending.
std::vector<std::pair<uint32_t, uint32_t>> ranges_of_classes(uint32_t classes);
// The same of a property: P, S, Z, Nd, "word" (\w) and scripts, such as Han; none for one that is not known.
std::vector<std::pair<uint32_t, uint32_t>> ranges_of_unicode_property(std::string_view name);

}  // namespace gptrain
