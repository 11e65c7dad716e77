#include "data/ingest/json_record.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>

#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

[[noreturn]] void fail(size_t at, const std::string& reason) { throw JsonFault(at, reason); }

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
  root_ = JsonScanner(text, JsonDialect::python).whole();
}

std::vector<JsonSpan> JsonRecord::elements(JsonSpan list) const {
  std::vector<JsonSpan> found;
  JsonScanner(text_, JsonDialect::python, list.begin).list(1, [&](JsonSpan element) { found.push_back(element); });
  return found;
}

std::vector<JsonRecord::Member> JsonRecord::members(JsonSpan object) const {
  std::vector<Member> found;
  JsonScanner(text_, JsonDialect::python, object.begin).object(1, [&](JsonSpan key, JsonSpan value) {
    found.push_back({key, value});
  });
  return found;
}

bool JsonRecord::member(JsonSpan object, std::string_view name, JsonSpan& value) const {
  bool found = false;
  for (const Member& member : members(object)) {
    const std::string_view plain = text_.substr(member.key.begin + 1, member.key.end - member.key.begin - 2);
    if (plain != name && (plain.find('\\') == std::string_view::npos || string_at(member.key, true) != name)) continue;
    value = member.value;
    found = true;
  }
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
        fail(
            value.begin + 1 + begin,
            fmt::format("{} is an unpaired surrogate, half of a character (--replace-invalid puts U+FFFD in its place)",
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

std::vector<JsonSpan> json_values_of_line(std::string_view line) {
  std::vector<JsonSpan> values;
  for (size_t at = 0; (at = line.find_first_not_of(json_separators, at)) != std::string_view::npos;) {
    const std::string_view rest = line.substr(at);
    if (rest.starts_with(byte_order_mark)) {
      at += byte_order_mark.size();
      continue;
    }
    const bool has_brackets = rest[0] == '{' || rest[0] == '[';
    const size_t end = has_brackets ? end_of_json_value(rest) : rest.find_first_of("{[", 1);
    const size_t begin = at;
    at += std::min(end, rest.size());
    const size_t next = line.find_first_not_of(json_separators, at);
    if (next != std::string_view::npos && line[next] == ',') at = next + 1;
    values.push_back({begin, at});
  }
  return values;
}

std::string json_record_fault(std::string_view text, const JsonFault& fault) {
  return fmt::format("not valid JSON: column {}: {}", position_in_text(text, fault.at).column,
                     json_fault_reason(text, fault));
}

}  // namespace gptrain::data
