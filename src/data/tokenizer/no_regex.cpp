// A build without PCRE2: the well-known patterns need none.
#include "base/error.h"
#include "data/tokenizer/regex.h"

namespace gptrain::inline data {

struct Regex::Impl {};

Regex::Regex(std::string_view pattern, const std::string& where) {
  throw Error(
      ExitCode::usage,
      "{}: the pattern {} is not one of gptrain's own, and this build lacks PCRE2: apt-get install libpcre2-dev, "
      "then build again",
      where, pattern);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

Regex::Match Regex::find(std::string_view text, size_t) { return {text.size(), text.size()}; }

}  // namespace gptrain::data
