// The pre-tokenizer patterns of well-known tokenizers, as scanners written by hand: the same pieces as their regular
// expressions give, at many times the speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gptrain {

enum class PatternKind : uint8_t {
  gpt2,
  cl100k,  // as tiktoken writes it since 0.8: white space at the end of a text is one piece
  llama3,  // the same as first published, which is also GPT-4's in tokenizer.json files
  qwen2,   // the same with digits one by one
  o200k,
};

// The names on the command line: gpt2, gpt4, o200k, llama3, qwen2. gpt4 is PatternKind::llama3, which every regular
// expression engine reads alike.
std::optional<PatternKind> pattern_of_name(std::string_view name);

// The regular expression, as tokenizer.json holds it.
std::string_view regex_of_pattern(PatternKind kind);
// The pattern with this regular expression, in any of its published spellings.
std::optional<PatternKind> pattern_of_regex(std::string_view regex);

// The length in bytes of the piece at the start of text[begin, text.size()); begin < text.size(). The whole of `text`
// must be there: what follows decides where a piece ends. Every piece holds at least one byte, and pieces leave no gap.
using PieceScanner = size_t (*)(std::string_view text, size_t begin);
PieceScanner scanner_of_pattern(PatternKind kind);

// The largest n <= text.size() with: the pieces of `text` followed by any other text are those of text[0, n) and then
// those of the rest. 0 where no such place was found. Holds for all patterns above, and for NFC before them.
size_t last_safe_cut(std::string_view text);

}  // namespace gptrain
