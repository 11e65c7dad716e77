// The pre-tokenizer patterns of well-known tokenizers as hand-written scanners: the same pieces as their regular
// expressions, many times faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gptrain::inline data {

enum class PatternKind : uint8_t {
  gpt2,
  cl100k,  // as in tiktoken since 0.8: white space at the end of a text is one piece
  llama3,  // as first published; also GPT-4's in tokenizer.json files
  qwen2,   // as llama3, with digits one by one
  o200k,
};

// Returns the pattern of a command line name: gpt2, gpt4, o200k, llama3, qwen2. gpt4 is PatternKind::llama3, which
// every regular expression engine reads alike.
std::optional<PatternKind> pattern_of_name(std::string_view name);

// Returns the regular expression, as in a tokenizer.json.
std::string_view regex_of_pattern(PatternKind kind);
// Returns the pattern of a regular expression, in any of its published spellings.
std::optional<PatternKind> pattern_of_regex(std::string_view regex);

// Returns the length in bytes of the piece at the start of text[begin, text.size()). REQUIRES: begin < text.size(), and
// `text` is the whole text, as later characters decide where a piece ends. Every piece has at least one byte, and
// pieces leave no gap.
using PieceScanner = size_t (*)(std::string_view text, size_t begin);
PieceScanner scanner_of_pattern(PatternKind kind);

// Returns the largest n <= text.size() at which `text` can be split: the pieces of `text` followed by any other text
// are those of text[0, n) and then those of the rest. 0 if no such position was found. Valid for all patterns above,
// and with NFC before them.
size_t last_safe_cut(std::string_view text);

}  // namespace gptrain::data
