// A pre-tokenizer pattern other than the well-known ones, matched by PCRE2 with its just-in-time compiler.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace gptrain::inline data {

// The subset of regular expressions that Oniguruma (Hugging Face tokenizers), tiktoken and PCRE2 read alike:
// characters, sets, \p{...} of general categories, \s \S, quantifiers, groups, look-around and alternatives. \p and \s
// are expanded from gptrain's own tables, so that the Unicode version of the system's library has no effect. Not
// thread-safe.
class Regex {
 public:
  // `where`: the pattern's place, for messages. Throws Error(usage) with the construct that cannot be matched exactly,
  // the fault in the pattern, or the package that this build lacks.
  Regex(std::string_view pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  struct Match {
    size_t begin;
    size_t end;
  };
  // Returns the first match at or after `from`; begin = end = text.size() if there is none. Throws Error(data) if the
  // pattern matches the empty string, or needs more steps than PCRE2 allows.
  Match find(std::string_view text, size_t from);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gptrain::data
