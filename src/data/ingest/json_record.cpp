#include "data/ingest/json_record.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>

#include "base/json.h"
#include "base/printable.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

constexpr std::string_view json_blanks = " \t\r\n";

[[noreturn]] void fail(size_t at, const std::string& reason) { throw JsonFault(at, reason); }

// Scans a text value by value. Each method begins at the scanner's position and leaves it after the text read.
class Scanner {
 public:
  explicit Scanner(std::string_view text, size_t at = 0) : text_(text), at_(at) {}

  size_t at() const { return at_; }
  bool at_end() const { return at_ >= text_.size(); }
  char next() const { return at_end() ? '\0' : text_[at_]; }

  void skip_blanks() { at_ = std::min(text_.find_first_not_of(json_blanks, at_), text_.size()); }

  void value(int depth) {
    skip_blanks();
    if (at_end()) fail(at_, "a value is missing at the end");
    const char c = next();
    if (c == '{' || c == '[') return container(depth + 1);
    if (c == '"') return string();
    if (c == '-' || (c >= '0' && c <= '9')) return number();
    for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity"}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return;
      }
    }
    fail(at_, c == '\'' ? "strings have double quotes" : "no value begins like this");
  }

  // Reads an object. Calls `on_member(key, value)` for each member.
  template <typename OnMember>
  void object(int depth, const OnMember& on_member) {
    ++at_;
    for (bool first = true;; first = false) {
      if (ends('}', first)) return;
      if (next() != '"') fail(at_, "a member begins with its name in double quotes");
      const size_t key = at_;
      string();
      const size_t key_end = at_;
      skip_blanks();
      if (next() != ':') fail(at_, "a colon must follow the name of a member");
      ++at_;
      skip_blanks();
      const size_t begin = at_;
      value(depth);
      on_member(JsonSpan{key, key_end}, JsonSpan{begin, at_});
    }
  }

  template <typename OnElement>
  void list(int depth, const OnElement& on_element) {
    ++at_;
    for (bool first = true;; first = false) {
      if (ends(']', first)) return;
      const size_t begin = at_;
      value(depth);
      on_element(JsonSpan{begin, at_});
    }
  }

 private:
  // Reads the closing bracket, or the comma before a value that is not the first. Returns true for the bracket.
  bool ends(char close, bool first) {
    skip_blanks();
    if (at_end()) fail(at_, fmt::format("the text ends before {} closes what was opened", close));
    if (next() == close) {
      ++at_;
      return true;
    }
    if (first) return false;
    if (next() != ',') fail(at_, fmt::format("a comma or {} must follow a value", close));
    ++at_;
    skip_blanks();
    if (next() == close) fail(at_, "nothing follows the comma");
    return false;
  }

  void container(int depth) {
    if (depth > max_json_depth) fail(at_, fmt::format("nested deeper than {} levels", max_json_depth));
    if (next() == '{') {
      object(depth, [](JsonSpan, JsonSpan) {});
    } else {
      list(depth, [](JsonSpan) {});
    }
  }

  void string() {
    const size_t begin = at_++;
    while (!at_end() && next() != '"') {
      if (static_cast<uint8_t>(next()) < 0x20) {
        fail(at_, fmt::format("a string holds {}, which must be written as an escape",
                              next() == '\n' ? "the end of a line" : "a control character"));
      }
      if (next() == '\\') {
        escape();
      } else {
        ++at_;
      }
    }
    if (at_end()) fail(begin, "the string that begins here has no closing quote");
    ++at_;
  }

  void escape() {
    const size_t begin = at_++;
    if (at_end()) fail(begin, "the text ends inside of an escape");
    if (next() != 'u') {
      if (std::string_view("\"\\/bfnrt").find(next()) == std::string_view::npos) fail(begin, "no such escape");
      ++at_;
      return;
    }
    ++at_;
    const std::string_view digits = text_.substr(at_, 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      fail(begin, "four hexadecimal digits must follow \\u");
    }
    at_ += 4;
  }

  void digits(const char* where) {
    const size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
    if (end == at_) fail(at_, fmt::format("a digit is missing {}", where));
    at_ = end;
  }

  void number() {
    const size_t begin = at_;
    if (next() == '-') ++at_;
    if (text_.substr(at_).starts_with("Infinity")) {
      at_ += std::string_view("Infinity").size();
      return;
    }
    const bool starts_with_zero = next() == '0';
    const size_t first_digit = at_;
    digits("in a number");
    if (starts_with_zero && at_ > first_digit + 1) fail(begin, "a number begins with 0");
    if (next() == '.') {
      ++at_;
      digits("behind the point");
    }
    if (next() == 'e' || next() == 'E') {
      ++at_;
      if (next() == '+' || next() == '-') ++at_;
      digits("in the exponent");
    }
  }

  std::string_view text_;
  size_t at_;
};

uint32_t hexadecimal(std::string_view digits) {
  uint32_t value = 0;
  for (const char c : digits) value = value << 4 | static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  return value;
}

char simple_escape(char c) {
  switch (c) {
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return c;
  }
}

}  // namespace

JsonRecord::JsonRecord(std::string_view text) : text_(text) {
  if (const size_t invalid = find_invalid_utf8(text); invalid < text.size()) {
    fail(invalid, fmt::format("byte 0x{:02x} is not UTF-8 (--replace-invalid puts U+FFFD in its place)",
                              static_cast<uint8_t>(text[invalid])));
  }
  Scanner scanner(text);
  scanner.skip_blanks();
  root_.begin = scanner.at();
  scanner.value(0);
  root_.end = scanner.at();
  scanner.skip_blanks();
  if (!scanner.at_end()) fail(scanner.at(), "something follows the value");
}

std::vector<JsonSpan> JsonRecord::elements() const {
  if (text_[root_.begin] != '[') return {root_};
  std::vector<JsonSpan> found;
  Scanner(text_, root_.begin).list(1, [&](JsonSpan element) { found.push_back(element); });
  return found;
}

bool JsonRecord::member(JsonSpan object, std::string_view name, JsonSpan& value) const {
  bool found = false;
  Scanner(text_, object.begin).object(1, [&](JsonSpan key, JsonSpan member) {
    const std::string_view plain = text_.substr(key.begin + 1, key.end - key.begin - 2);
    if (plain != name && (plain.find('\\') == std::string_view::npos || string_at(key, true) != name)) return;
    value = member;
    found = true;
  });
  return found;
}

const char* JsonRecord::type_name(JsonSpan value) const {
  switch (text_[value.begin]) {
    case '[':
      return "array";
    case '{':
      return "object";
    case '"':
      return "string";
    case 't':
    case 'f':
      return "boolean";
    case 'n':
      return "null";
    default:
      return "number";
  }
}

std::string JsonRecord::string_at(JsonSpan value, bool replace_surrogates) const {
  const std::string_view inner = text_.substr(value.begin + 1, value.end - value.begin - 2);
  std::string out;
  for (size_t at = 0; at < inner.size();) {
    if (inner[at] != '\\') {
      const size_t end = std::min(inner.find('\\', at), inner.size());
      out += inner.substr(at, end - at);
      at = end;
      continue;
    }
    if (inner[at + 1] != 'u') {
      out += simple_escape(inner[at + 1]);
      at += 2;
      continue;
    }
    constexpr size_t escape_bytes = 6;
    uint32_t code = hexadecimal(inner.substr(at + 2, 4));
    const size_t begin = at;
    at += escape_bytes;
    const bool has_low = code >= 0xD800 && code < 0xDC00 && inner.substr(at, 2) == "\\u";
    const uint32_t low = has_low ? hexadecimal(inner.substr(at + 2, 4)) : 0;
    if (low >= 0xDC00 && low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      at += escape_bytes;
    } else if (code >= 0xD800 && code < 0xE000) {
      if (!replace_surrogates) {
        fail(value.begin + 1 + begin,
             fmt::format("{} is half of a character (--replace-invalid puts U+FFFD in its place)",
                         inner.substr(begin, escape_bytes)));
      }
      code = 0xFFFD;
    }
    append_utf8(out, code);
  }
  return out;
}

size_t end_of_json_value(std::string_view text) {
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) {
        if (text[at] == '\\') ++at;
      }
      if (at >= text.size()) break;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    } else {
      continue;
    }
    if (depth <= 0) return at + 1;
  }
  return std::string_view::npos;
}

std::string describe_json_fault(std::string_view text, const JsonFault& fault) {
  constexpr size_t shown_before = 30;
  constexpr size_t shown_bytes = 60;
  const auto is_within = [&](size_t at) {
    return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0U) == 0x80U;
  };
  const size_t line = text.rfind('\n', fault.at == 0 ? 0 : fault.at - 1);
  const size_t line_begin = line == std::string_view::npos || fault.at == 0 ? 0 : line + 1;
  const auto before = text.substr(line_begin, fault.at - line_begin);
  const auto column = 1 + std::count_if(before.begin(), before.end(),
                                        [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80U; });
  size_t begin = std::max(line_begin, fault.at - std::min(fault.at, shown_before));
  while (is_within(begin)) ++begin;
  std::string_view around = text.substr(begin, shown_bytes);
  around = around.substr(0, around.find('\n', std::min(fault.at - std::min(begin, fault.at), around.size())));
  return fmt::format("not valid JSON: column {}: {}; the text there: {}", column, fault.what(),
                     around.empty() ? std::string("(the end)") : printable(around));
}

}  // namespace gptrain::data
