#include "data/tokenizer/regex_classes.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace gptrain {
namespace {

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

Ranges complement(const Ranges& ranges) {
  Ranges result;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (first > next) result.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next < num_code_points) result.emplace_back(next, num_code_points - 1);
  return result;
}

void append_ranges(std::string& text, const Ranges& ranges) {
  for (auto [first, last] : ranges) {
    // Surrogates are not characters, and PCRE2 refuses them.
    if (first >= 0xD800 && first < 0xE000) first = 0xE000;
    if (last >= 0xD800 && last < 0xE000) last = 0xD7FF;
    if (first > last) continue;
    text += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", first, last);
  }
}

std::optional<uint32_t> classes_of_property(std::string_view name) {
  using enum CharacterClass;
  const std::array<std::pair<std::string_view, uint32_t>, 9> known = {{
      {"L", letter_classes},
      {"Lu", class_bit(upper)},
      {"Lt", class_bit(title)},
      {"Ll", class_bit(lower)},
      {"Lm", class_bit(modifier)},
      {"Lo", class_bit(letter)},
      {"M", mark_classes},
      {"N", number_classes},
      {"", 0},
  }};
  for (const auto& [key, classes] : known) {
    if (!key.empty() && key == name) return classes;
  }
  return std::nullopt;
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        set();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        repeat();
      } else if (c == '^' || c == '$') {
        refuse(std::string(1, c), "is the edge of a line to one engine and of the text to another");
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct, std::string_view reason) const {
    throw Error(ExitCode::usage, "{}: {} in the pattern {}", where_, construct, reason);
  }

  void escape(bool in_set) {
    if (at_ + 1 >= pattern_.size()) refuse("a backslash at the end", "escapes nothing");
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') return property(in_set, c == 'P');
    if (c == 's' || c == 'S') {
      at_ += 2;
      const Ranges blanks = ranges_of_classes(space_classes);
      return put_ranges(in_set, c == 's' ? blanks : complement(blanks));
    }
    const bool is_letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    const bool is_known = c == 'r' || c == 'n' || c == 't' || c == 'f';
    if (is_letter_or_digit && !is_known) {
      refuse(fmt::format("\\{}", c), "is not matched as the reference tokenizers match it");
    }
    out_ += pattern_.substr(at_, 2);
    at_ += 2;
  }

  void property(bool in_set, bool negated) {
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos || pattern_.substr(at_ + 2, 1) != "{") {
      // \pL is \p{L}.
      if (at_ + 2 >= pattern_.size()) refuse("\\p", "names no property");
      const auto classes = classes_of_property(pattern_.substr(at_ + 2, 1));
      if (!classes) refuse(pattern_.substr(at_, 3), "is not matched as the reference tokenizers match it");
      at_ += 3;
      return put_property(in_set, negated, *classes);
    }
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const std::string_view whole = pattern_.substr(at_, close + 1 - at_);
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    const auto classes = classes_of_property(name);
    if (!classes) refuse(whole, "is not matched as the reference tokenizers match it");
    at_ = close + 1;
    put_property(in_set, negated, *classes);
  }

  void put_property(bool in_set, bool negated, uint32_t classes) {
    constexpr uint32_t cased =
        class_bit(CharacterClass::upper) | class_bit(CharacterClass::title) | class_bit(CharacterClass::lower);
    if (ignores_case_ && (classes & cased) != 0 && (classes & cased) != cased) {
      refuse("a class of one case after (?i", "depends on the engine");
    }
    const Ranges ranges = ranges_of_classes(classes);
    put_ranges(in_set, negated ? complement(ranges) : ranges);
  }

  void put_ranges(bool in_set, const Ranges& ranges) {
    if (!in_set) out_ += '[';
    append_ranges(out_, ranges);
    if (!in_set) out_ += ']';
  }

  void set() {
    out_ += '[';
    ++at_;
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    for (bool first = true;; first = false) {
      if (at_ >= pattern_.size()) refuse("a set without ]", "never ends");
      const char c = pattern_[at_];
      if (c == ']') {
        if (first) refuse("[]", "is an empty set to some engines");
        break;
      }
      if (c == '[') refuse("a set within a set", "is read differently by regular expression engines");
      if (c == '&' && pattern_.substr(at_, 2) == "&&") refuse("&&", "is an intersection to some engines only");
      if (c == '\\') {
        escape(true);
      } else {
        out_ += c;
        ++at_;
      }
    }
    out_ += ']';
    ++at_;
  }

  void group() {
    const std::string_view rest = pattern_.substr(at_);
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!rest.starts_with(known)) continue;
      if (known == "(?i:") ignores_case_ = true;
      out_ += known;
      at_ += known.size();
      return;
    }
    if (rest.starts_with("(?") || rest.starts_with("(*")) {
      refuse(rest.substr(0, 4), "is read differently by regular expression engines");
    }
    out_ += '(';
    ++at_;
  }

  // {n,m}+ is possessive in PCRE2, and a repeated repeat in Oniguruma.
  void repeat() {
    const size_t close = pattern_.find('}', at_);
    const bool is_repeat =
        close != std::string_view::npos &&
        pattern_.substr(at_ + 1, close - at_ - 1).find_first_not_of("0123456789,") == std::string_view::npos;
    if (!is_repeat) refuse("a brace that is no repeat", "must be written \\{");
    if (pattern_.substr(at_ + 1, 1) == ",") refuse("{,n}", "is a repeat to some engines only");
    if (close + 1 < pattern_.size() && (pattern_[close + 1] == '+' || pattern_[close + 1] == '?')) {
      refuse(pattern_.substr(at_, close + 2 - at_), "is read differently by regular expression engines");
    }
    out_ += pattern_.substr(at_, close + 1 - at_);
    at_ = close + 1;
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  bool ignores_case_ = false;
  std::string out_;
};

}  // namespace

std::string spell_out_classes(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

}  // namespace gptrain
