#include "base/json_scanner.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>

#include "base/json.h"
#include "base/printable.h"
#include "base/utf8.h"

namespace gptrain::inline base {
namespace {

constexpr std::string_view json_blanks = " \t\r\n";

[[noreturn]] void fail(size_t at, const std::string& reason) { throw JsonFault(at, reason); }

bool is_within_character(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0U) == 0x80U;
}

size_t invalid_utf8_in(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const DecodedCharacter character = decode_utf8(text.substr(at, longest_utf8));
    if (character.code_point == num_code_points) break;
    at += character.length;
  }
  return at;
}

bool is_high_surrogate(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low_surrogate(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

}  // namespace

JsonSpan JsonScanner::whole() {
  skip_blanks();
  const size_t begin = at_;
  value(0);
  const size_t end = at_;
  skip_blanks();
  if (!at_end()) fail(at_, "there is text after the end of the JSON value");
  return {begin, end};
}

void JsonScanner::skip_blanks() {
  while (true) {
    at_ = std::min(text_.find_first_not_of(json_blanks, at_), text_.size());
    if (dialect_ != JsonDialect::with_comments || next() != '/') return;
    const bool of_line = text_.substr(at_, 2) == "//";
    if (!of_line && text_.substr(at_, 2) != "/*") return;
    const size_t end = text_.find(of_line ? "\n" : "*/", at_ + 2);
    if (end == std::string_view::npos && !of_line) fail(at_, "the comment that begins here has no end");
    at_ = end == std::string_view::npos ? text_.size() : end + (of_line ? 1 : 2);
  }
}

void JsonScanner::value(int depth) {
  skip_blanks();
  if (at_end()) fail(at_, "a value is missing at the end");
  const char c = next();
  if (c == '{' || c == '[') return container(depth + 1);
  if (c == '"') return string();
  if (c == '-' || (c >= '0' && c <= '9')) return number();
  for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity"}) {
    if (!text_.substr(at_).starts_with(word)) continue;
    if (dialect_ != JsonDialect::python && (c == 'N' || c == 'I')) fail(at_, fmt::format("{} is no value here", word));
    at_ += word.size();
    return;
  }
  fail(at_, c == '\'' ? "strings must be in double quotes" : "no value begins like this");
}

// Reads a member's name and the colon. Returns the end of the name.
size_t JsonScanner::name() {
  if (at_end()) fail(at_, "the text ends where a member must follow");
  if (next() != '"') fail(at_, "a member must begin with its name in double quotes");
  string();
  const size_t end = at_;
  skip_blanks();
  if (next() != ':') fail(at_, "a colon must follow the name of a member");
  ++at_;
  skip_blanks();
  return end;
}

// Reads the closing bracket, or the comma before a value that is not the first. Returns true for the bracket.
bool JsonScanner::ends(char close, bool first) {
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

void JsonScanner::container(int depth) {
  const int most = dialect_ == JsonDialect::python ? max_python_json_depth : max_json_depth;
  if (depth > most) fail(at_, fmt::format("nested deeper than {} levels", most));
  if (next() == '{') {
    object(depth, [](JsonSpan, JsonSpan) {});
  } else {
    list(depth, [](JsonSpan) {});
  }
}

void JsonScanner::string() {
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

void JsonScanner::escape() {
  const size_t begin = at_++;
  if (at_end()) fail(begin, "the text ends inside of an escape");
  if (next() != 'u') {
    if (std::string_view("\"\\/bfnrt").find(next()) == std::string_view::npos) fail(begin, "no such escape");
    ++at_;
    return;
  }
  const uint32_t unit = escaped_unit(begin);
  if (dialect_ == JsonDialect::python || (!is_high_surrogate(unit) && !is_low_surrogate(unit))) return;
  const size_t second = at_;
  const bool is_pair = is_high_surrogate(unit) && text_.substr(second, 2) == "\\u";
  if (is_pair) ++at_;
  if (!is_pair || !is_low_surrogate(escaped_unit(second)))
    fail(begin, "the escape is an unpaired surrogate, half of a character");
}

// Reads u and four digits. `begin`: the offset of the backslash.
uint32_t JsonScanner::escaped_unit(size_t begin) {
  ++at_;
  uint32_t unit = 0;
  for (const size_t end = at_ + 4; at_ < end; ++at_) {
    const size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(next() | 0x20));
    if (digit == std::string_view::npos || next() < '0') fail(begin, "four hexadecimal digits must follow \\u");
    unit = unit << 4 | static_cast<uint32_t>(digit);
  }
  return unit;
}

void JsonScanner::digits(const char* where) {
  const size_t end = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
  if (end == at_) fail(at_, fmt::format("a digit is missing {}", where));
  at_ = end;
}

void JsonScanner::number() {
  const size_t begin = at_;
  if (next() == '-') ++at_;
  if (dialect_ == JsonDialect::python && text_.substr(at_).starts_with("Infinity")) {
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
  const std::string read(text_.substr(begin, at_ - begin));
  if (dialect_ != JsonDialect::python && std::isinf(std::strtod(read.c_str(), nullptr)))
    fail(begin, "the number is too large");
}

std::string json_fault_reason(std::string_view text, const JsonFault& fault) {
  constexpr size_t shown_before = 30;
  constexpr size_t shown_bytes = 60;
  const size_t line = text.rfind('\n', fault.at == 0 ? 0 : fault.at - 1);
  const size_t line_begin = line == std::string_view::npos || fault.at == 0 ? 0 : line + 1;
  size_t begin = std::max(line_begin, fault.at - std::min(fault.at, shown_before));
  while (is_within_character(text, begin)) ++begin;
  std::string_view around = text.substr(begin, shown_bytes);
  around = around.substr(0, around.find('\n', std::min(fault.at - std::min(begin, fault.at), around.size())));
  return fmt::format("{}; the text there: {}", fault.what(),
                     around.empty() ? std::string("(the end)") : printable(around));
}

TextPosition position_in_text(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const size_t newline = before.rfind('\n');
  const std::string_view in_line = before.substr(newline == std::string_view::npos ? 0 : newline + 1);
  const auto characters =
      in_line.size() - static_cast<size_t>(std::count_if(in_line.begin(), in_line.end(), [](char c) {
        return (static_cast<uint8_t>(c) & 0xC0U) == 0x80U;
      }));
  return {static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1, characters + 1};
}

JsonFault find_json_fault(std::string_view text, JsonDialect dialect) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  try {
    JsonScanner(text, dialect, text.starts_with(byte_order_mark) ? byte_order_mark.size() : 0).whole();
  } catch (const JsonFault& fault) {
    return fault;
  }
  if (const size_t invalid = invalid_utf8_in(text); invalid < text.size())
    return {invalid, fmt::format("byte 0x{:02x} is not UTF-8", static_cast<uint8_t>(text[invalid]))};
  return {0, "the text cannot be read"};
}

std::string describe_json_fault(std::string_view text) {
  const JsonFault fault = find_json_fault(text);
  const TextPosition position = position_in_text(text, fault.at);
  return fmt::format("not valid JSON: line {}, column {}: {}", position.line, position.column,
                     json_fault_reason(text, fault));
}

}  // namespace gptrain::base
