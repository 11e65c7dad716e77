#include "data/tokenizer/regex_classes.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
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

Ranges of_both(const Ranges& a, const Ranges& b) {
  Ranges result = a;
  result.insert(result.end(), b.begin(), b.end());
  std::sort(result.begin(), result.end());
  Ranges merged;
  for (const auto& [first, last] : result) {
    if (!merged.empty() && first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, last);
    } else {
      merged.emplace_back(first, last);
    }
  }
  return merged;
}

Ranges in_both(const Ranges& a, const Ranges& b) { return complement(of_both(complement(a), complement(b))); }

// Returns the code points of a general category or script; nullopt if the name is unknown.
std::optional<Ranges> ranges_of_property(std::string_view name) {
  using enum CharacterClass;
  struct Known {
    std::string_view name;
    uint32_t classes;
  };
  constexpr Known categories[] = {{"L", letter_classes},    {"Lu", class_bit(upper)},    {"Lt", class_bit(title)},
                                  {"Ll", class_bit(lower)}, {"Lm", class_bit(modifier)}, {"Lo", class_bit(letter)},
                                  {"M", mark_classes},      {"N", number_classes}};
  for (const Known& known : categories) {
    if (known.name == name) return ranges_of_classes(known.classes);
  }
  Ranges ranges = ranges_of_unicode_property(name);
  return ranges.empty() ? std::nullopt : std::optional(std::move(ranges));
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        set();
      } else if (c == '(') {
        group();
      } else if (c == ')') {
        close_group();
      } else if (c == '{') {
        repeat();
      } else if (c == '$') {
        // Matches as Oniguruma's $: before any newline, and at the end of the text.
        out_ += "(?=\\n|\\z)";
        ++at_;
      } else if (c == '^') {
        out_ += "(?<![^\\n])";
        ++at_;
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

  // Reads \\s, \\d, \\w, \\p{...} or its negation. Returns nullopt for other escapes.
  std::optional<Ranges> escaped_class() {
    if (at_ + 1 >= pattern_.size()) refuse("a backslash at the end", "escapes nothing");
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') return property(c == 'P');
    Ranges ranges;
    switch (c | 0x20) {
      case 's':
        ranges = ranges_of_classes(space_classes);
        break;
      case 'd':
        ranges = ranges_of_unicode_property("Nd");
        break;
      case 'w':
        ranges = ranges_of_unicode_property("word");
        break;
      default:
        return std::nullopt;
    }
    at_ += 2;
    return c >= 'a' ? ranges : complement(ranges);
  }

  // Returns the character that an escape denotes.
  uint32_t escaped_character() {
    const char c = pattern_[at_ + 1];
    constexpr std::string_view names = "rntf", characters = "\r\n\t\f";
    const bool is_letter_or_digit = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (const size_t known = names.find(c); known != std::string_view::npos) {
      at_ += 2;
      return static_cast<uint32_t>(characters[known]);
    }
    if (is_letter_or_digit) refuse(fmt::format("\\{}", c), "is not matched as the reference tokenizers match it");
    ++at_;
    return plain_character();
  }

  uint32_t plain_character() {
    const DecodedCharacter character = decode_utf8(pattern_.substr(at_));
    if (character.code_point >= num_code_points) refuse("a byte that is not UTF-8", "cannot be matched");
    at_ += character.length;
    return character.code_point;
  }

  void escape() {
    if (const std::optional<Ranges> ranges = escaped_class()) return put_set(*ranges);
    const size_t begin = at_;
    escaped_character();
    out_ += pattern_.substr(begin, at_ - begin);
  }

  Ranges property(bool negated) {
    const size_t begin = at_;
    std::string_view name;
    if (pattern_.substr(at_ + 2, 1) == "{") {
      const size_t close = pattern_.find('}', at_);
      if (close == std::string_view::npos) refuse("\\p{", "never ends");
      name = pattern_.substr(at_ + 3, close - at_ - 3);
      at_ = close + 1;
    } else {
      // The form without braces: \\pL is \\p{L}.
      name = pattern_.substr(at_ + 2, 1);
      at_ = std::min(at_ + 3, pattern_.size());
    }
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    const std::optional<Ranges> ranges = ranges_of_property(name);
    if (!ranges) refuse(pattern_.substr(begin, at_ - begin), "is not matched as the reference tokenizers match it");
    if (ignores_case_ && (name == "Lu" || name == "Lt" || name == "Ll")) {
      refuse("a class of one case after (?i", "depends on the engine");
    }
    return negated ? complement(*ranges) : *ranges;
  }

  void put_set(const Ranges& ranges) {
    const size_t begin = out_.size();
    out_ += '[';
    append_ranges(out_, ranges);
    out_ += ']';
    if (out_.size() == begin + 2) refuse("a set of no characters", "matches nothing");
  }

  void set() { put_set(ranges_of_set(0)); }

  // Reads an item of a set: a class, a nested set, a character, or a range of characters.
  Ranges ranges_of_item(int depth) {
    if (pattern_[at_] == '[') {
      if (pattern_.substr(at_, 2) == "[:") refuse("[:", "is a class to some engines only");
      return ranges_of_set(depth + 1);
    }
    if (pattern_[at_] == '\\') {
      if (std::optional<Ranges> ranges = escaped_class()) return *ranges;
    }
    const uint32_t first = pattern_[at_] == '\\' ? escaped_character() : plain_character();
    if (pattern_.substr(at_, 1) != "-" || at_ + 1 >= pattern_.size() || pattern_[at_ + 1] == ']')
      return {{first, first}};
    ++at_;
    if (pattern_[at_] == '[' || (pattern_[at_] == '\\' && escaped_class())) refuse("a range to a class", "has no end");
    const uint32_t last = pattern_[at_] == '\\' ? escaped_character() : plain_character();
    if (last < first) refuse("a range whose end comes before its begin", "is empty");
    return {{first, last}};
  }

  // Reads a set and returns its characters. && intersects the sets on its two sides.
  Ranges ranges_of_set(int depth) {
    constexpr int most_depth = 16;
    if (depth > most_depth) refuse("a set", "nests sets too deeply");
    ++at_;
    const bool negated = pattern_.substr(at_, 1) == "^";
    if (negated) ++at_;
    std::optional<Ranges> before;
    Ranges ranges;
    for (bool first = true;; first = false) {
      if (at_ >= pattern_.size()) refuse("a set without ]", "never ends");
      if (pattern_[at_] == ']') {
        if (first) refuse("[]", "is an empty set to some engines");
        break;
      }
      if (pattern_.substr(at_, 2) == "&&") {
        before = before ? in_both(*before, ranges) : ranges;
        ranges.clear();
        at_ += 2;
        continue;
      }
      ranges = of_both(ranges, ranges_of_item(depth));
    }
    ++at_;
    if (before) ranges = in_both(*before, ranges);
    return negated ? complement(ranges) : ranges;
  }

  void group() {
    const std::string_view rest = pattern_.substr(at_);
    for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!rest.starts_with(known)) continue;
      open_groups_.push_back(ignores_case_);
      if (known == "(?i:") ignores_case_ = true;
      out_ += known;
      at_ += known.size();
      return;
    }
    if (rest.starts_with("(?") || rest.starts_with("(*")) {
      refuse(rest.substr(0, 4), "is read differently by regular expression engines");
    }
    open_groups_.push_back(ignores_case_);
    out_ += '(';
    ++at_;
  }

  void close_group() {
    if (open_groups_.empty()) refuse(")", "closes nothing");
    ignores_case_ = open_groups_.back();
    open_groups_.pop_back();
    out_ += ')';
    ++at_;
  }

  // Reads {n,m}. {n,m}+ is possessive in PCRE2 but a quantifier on a quantifier in Oniguruma.
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
  std::vector<bool> open_groups_;  // per open group: ignores_case_ before it
  std::string out_;
};

}  // namespace

std::string spell_out_classes(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

}  // namespace gptrain::data
