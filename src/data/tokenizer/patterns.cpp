#include "data/tokenizer/patterns.h"

#include <array>

#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

constexpr uint32_t letters = letter_classes;
constexpr uint32_t numbers = number_classes;
constexpr uint32_t spaces = space_classes;
constexpr uint32_t newlines = newline_classes;
// Classes with which o200k lets a word begin and continue.
constexpr uint32_t caseless = class_bit(CharacterClass::modifier) | class_bit(CharacterClass::letter) | mark_classes;
constexpr uint32_t head_of_word = class_bit(CharacterClass::upper) | class_bit(CharacterClass::title) | caseless;
constexpr uint32_t tail_of_word = class_bit(CharacterClass::lower) | caseless;

// A position in a text, with the class of its character; past the end the class is none.
class Cursor {
 public:
  Cursor(std::string_view text, size_t at) : text_(text), classes_(character_classes()), at_(at) { look(); }

  size_t at() const { return at_; }
  bool is(uint32_t classes) const { return (bit_ & classes) != 0; }
  bool is_none_of(uint32_t classes) const { return bit_ != 0 && (bit_ & classes) == 0; }
  bool at_end() const { return bit_ == 0; }
  char byte() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void advance() {
    at_ += length_;
    look();
  }
  void skip(uint32_t classes) {
    while (is(classes)) advance();
  }
  void skip_none_of(uint32_t classes) {
    while (is_none_of(classes)) advance();
  }

 private:
  void look() {
    if (at_ >= text_.size()) {
      bit_ = 0;
      length_ = 0;
      return;
    }
    const auto byte = static_cast<uint8_t>(text_[at_]);
    if (byte < 0x80) {
      bit_ = 1U << classes_[byte];
      length_ = 1;
      return;
    }
    const DecodedCharacter character = decode_utf8(text_.substr(at_));
    bit_ = 1U << classes_[character.code_point];
    length_ = character.length;
  }

  std::string_view text_;
  const uint8_t* classes_;
  size_t at_;
  uint32_t bit_ = 0;
  uint32_t length_ = 0;
};

// Returns the end of a contraction ('s 't 're 've 'm 'll 'd) at `at`, with `any_case` in any case; 0 if there is none.
// The long s folds to s.
size_t contraction_end(std::string_view text, size_t at, bool any_case) {
  const auto byte = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  if (byte(at) != '\'') return 0;
  const char first = byte(at + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (any_case && text.substr(at + 1, 2) == "\xC5\xBF") return at + 3;
  const char second = byte(at + 2);
  const bool is_pair =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return is_pair ? at + 3 : 0;
}

// Returns the end of \s*[\r
// ]+ | \s+(?!\S) | \s+ at white space; without the first alternative if not `newlines_first`.
size_t whitespace_end(Cursor cursor, bool newlines_first, bool whole_at_end) {
  const size_t begin = cursor.at();
  size_t after_newline = 0;
  size_t last = begin;
  while (cursor.is(spaces)) {
    last = cursor.at();
    const bool is_newline = cursor.is(newlines);
    cursor.advance();
    if (is_newline) after_newline = cursor.at();
  }
  if (cursor.at_end() && whole_at_end) return cursor.at();
  if (newlines_first && after_newline != 0) return after_newline;
  return cursor.at_end() || last == begin ? cursor.at() : last;
}

size_t scan_gpt2(std::string_view text, size_t begin) {
  if (const size_t end = contraction_end(text, begin, false); end != 0) return end - begin;
  Cursor cursor(text, begin);
  if (cursor.byte() == ' ') cursor.advance();
  if (cursor.is(letters)) {
    cursor.skip(letters);
  } else if (cursor.is(numbers)) {
    cursor.skip(numbers);
  } else if (cursor.is_none_of(spaces)) {
    cursor.skip_none_of(spaces | letters | numbers);
  } else {
    return whitespace_end(Cursor(text, begin), false, true) - begin;
  }
  return cursor.at() - begin;
}

// Matches the part that the patterns after GPT-2's share, once their alternatives for words have failed.
size_t numbers_symbols_or_space(std::string_view text, size_t begin, int max_digits, bool with_slashes,
                                bool whole_at_end) {
  Cursor cursor(text, begin);
  if (cursor.is(numbers)) {
    for (int i = 0; i < max_digits && cursor.is(numbers); ++i) cursor.advance();
    return cursor.at() - begin;
  }
  if (cursor.byte() == ' ') cursor.advance();
  if (cursor.is_none_of(spaces | letters | numbers)) {
    cursor.skip_none_of(spaces | letters | numbers);
    while (cursor.is(newlines) || (with_slashes && cursor.byte() == '/')) cursor.advance();
    return cursor.at() - begin;
  }
  return whitespace_end(Cursor(text, begin), true, whole_at_end) - begin;
}

template <int max_digits, bool whole_at_end>
size_t scan_words(std::string_view text, size_t begin) {
  if (const size_t end = contraction_end(text, begin, true); end != 0) return end - begin;
  Cursor cursor(text, begin);
  if (cursor.is_none_of(newlines | letters | numbers)) cursor.advance();
  if (cursor.is(letters)) {
    cursor.skip(letters);
    return cursor.at() - begin;
  }
  return numbers_symbols_or_space(text, begin, max_digits, false, whole_at_end);
}

// Returns the end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at the cursor, as a backtracking
// matcher finds it; 0 if there is none. `heads_end`: end of the first part alone.
size_t lower_word_end(Cursor cursor, size_t& heads_end) {
  size_t after_caseless = 0;
  while (cursor.is(head_of_word)) {
    const bool is_caseless = cursor.is(caseless);
    cursor.advance();
    if (is_caseless) after_caseless = cursor.at();
  }
  heads_end = cursor.at();
  if (!cursor.is(tail_of_word)) return after_caseless;  // the second part gets the last character that it accepts
  cursor.skip(tail_of_word);
  return cursor.at();
}

size_t scan_o200k(std::string_view text, size_t begin) {
  const Cursor start(text, begin);
  Cursor word = start;
  const bool has_prefix = start.is_none_of(newlines | letters | numbers);
  if (has_prefix) word.advance();
  size_t heads_end = 0;
  size_t end = lower_word_end(word, heads_end);
  if (end == 0 && has_prefix) {
    size_t ignored = 0;
    end = lower_word_end(start, ignored);  // a mark may be the prefix, or the word
  }
  if (end == 0 && heads_end > word.at()) end = heads_end;  // capital letters alone
  if (end == 0) return numbers_symbols_or_space(text, begin, 3, true, false);
  const size_t after = contraction_end(text, end, true);
  return (after != 0 ? after : end) - begin;
}

struct NamedRegex {
  PatternKind kind;
  std::string_view regex;
};

// The first regex of a kind is the one that is written.
constexpr NamedRegex known_regexes[] = {
    {PatternKind::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {PatternKind::gpt2, R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"},
    {PatternKind::gpt2, R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    // The second is tiktoken's; the first has no possessive quantifiers, so that Oniguruma reads it alike.
    {PatternKind::cl100k, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                          R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?![\s\S])|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {PatternKind::cl100k, R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|)"
                          R"( ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)"},
    {PatternKind::llama3, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                          R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {PatternKind::qwen2, R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                         R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {PatternKind::o200k, R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                         R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                         R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

}  // namespace

std::optional<PatternKind> pattern_of_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, PatternKind>, 5> names = {{{"gpt2", PatternKind::gpt2},
                                                                              {"gpt4", PatternKind::llama3},
                                                                              {"o200k", PatternKind::o200k},
                                                                              {"llama3", PatternKind::llama3},
                                                                              {"qwen2", PatternKind::qwen2}}};
  for (const auto& [known, kind] : names) {
    if (name == known) return kind;
  }
  return std::nullopt;
}

std::string_view regex_of_pattern(PatternKind kind) {
  for (const NamedRegex& known : known_regexes) {
    if (known.kind == kind) return known.regex;
  }
  return {};
}

std::optional<PatternKind> pattern_of_regex(std::string_view regex) {
  for (const NamedRegex& known : known_regexes) {
    if (known.regex == regex) return known.kind;
  }
  return std::nullopt;
}

PieceScanner scanner_of_pattern(PatternKind kind) {
  switch (kind) {
    case PatternKind::gpt2:
      return scan_gpt2;
    case PatternKind::cl100k:
      return scan_words<3, true>;
    case PatternKind::llama3:
      return scan_words<3, false>;
    case PatternKind::qwen2:
      return scan_words<1, false>;
    case PatternKind::o200k:
      return scan_o200k;
  }
  return nullptr;
}

size_t last_safe_cut(std::string_view text) {
  const auto is_letter = [&](size_t at) {
    const auto lowered = static_cast<uint8_t>(text[at] | 0x20);
    return lowered >= 'a' && lowered <= 'z';
  };
  // Every pattern splits between a word and a space that starts the next word, and nothing composes there.
  for (size_t at = text.size() < 2 ? 0 : text.size() - 2; at > 0; --at) {
    if (text[at] == ' ' && is_letter(at - 1) && is_letter(at + 1)) return at;
  }
  return 0;
}

}  // namespace gptrain::data
