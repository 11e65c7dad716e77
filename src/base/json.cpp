#include "base/json.h"

#include <fmt/format.h>
#include <string>

#include "base/append.h"
#include "base/utf8.h"

namespace gptrain::inline base {
namespace {

using nlohmann::json;

// Returns the position after the string that begins at `quote`. A backslash escapes the next character.
size_t end_of_string(std::string_view text, size_t quote) {
  for (size_t at = quote + 1; at < text.size(); ++at) {
    if (text[at] == '\\')
      ++at;
    else if (text[at] == '"')
      return at + 1;
  }
  return text.size();
}

size_t end_of_comment(std::string_view text, size_t slash) {
  const bool of_line = text.substr(slash, 2) == "//";
  if (!of_line && text.substr(slash, 2) != "/*") return slash + 1;
  const size_t end = text.find(of_line ? "\n" : "*/", slash + 2);
  return end == std::string_view::npos ? text.size() : end + 1;
}

// Returns the position of the first bracket that exceeds the depth limit, npos if there is none. Checked before
// parsing, so that no deep value is built.
size_t offset_too_deep(std::string_view text) {
  int depth = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      continue;
    }
    if (c == '/') {
      at = end_of_comment(text, at);
      continue;
    }
    if ((c == '{' || c == '[') && ++depth > max_json_depth) return at;
    if (c == '}' || c == ']') --depth;
    ++at;
  }
  return std::string_view::npos;
}

// Calls on_key for keys of the outer objects and builds nothing. The library's building parser with a callback searches
// all members of an object after each member that is an object: quadratic time.
class OuterKeys final : public nlohmann::json_sax<json> {
 public:
  OuterKeys(const JsonKey& on_key, int most_depth) : on_key_(on_key), most_depth_(most_depth) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (depth_ <= most_depth_) on_key_(name, depth_);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception&) override { return false; }

 private:
  bool open() { return ++depth_ > 0; }
  bool close() { return --depth_ >= 0; }

  const JsonKey& on_key_;
  const int most_depth_;
  int depth_ = 0;
};

// Writes U+007F to U+009F as \u007f, which JSON does not ask for: some terminals obey them.
std::string escape_other_controls(const std::string& text) {
  constexpr char delete_byte = '\x7F';
  constexpr char lead_byte = '\xC2';  // of U+0080 to U+00BF
  std::string escaped;
  size_t begin = 0;  // start of the text that is not copied yet
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != delete_byte && text[at] != lead_byte) continue;
    const DecodedCharacter character = decode_utf8(std::string_view(text).substr(at, longest_utf8));
    if (character.code_point < 0x7f || character.code_point >= 0xa0) continue;
    escaped.append(text, begin, at - begin);
    append(escaped, "\\u{:04x}", character.code_point);
    begin = at + character.length;
  }
  return begin == 0 ? text : escaped.append(text, begin);
}

json::other_error too_deep() {
  return json::other_error::create(501, fmt::format("nested deeper than {} levels", max_json_depth), nullptr);
}

}  // namespace

std::string json_text(const nlohmann::json& value, int indent) { return escape_other_controls(value.dump(indent)); }

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return escape_other_controls(value.dump(indent));
}

json parse_json(std::string_view text, const JsonKey& on_key, int most_depth) {
  if (offset_too_deep(text) != std::string_view::npos) throw too_deep();
  if (on_key) {
    OuterKeys keys(on_key, most_depth);
    json::sax_parse(text, &keys);  // json::parse below reports syntax errors
  }
  return json::parse(text);
}

json parse_json_or_discard(std::string_view text) {
  if (offset_too_deep(text) != std::string_view::npos) return json(json::value_t::discarded);
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

void read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::ordered_json>& events) {
  if (const size_t offset = offset_too_deep(text); offset != std::string_view::npos) {
    events.parse_error(offset + 1, "", too_deep());
    return;
  }
  nlohmann::ordered_json::sax_parse(text, &events, nlohmann::ordered_json::input_format_t::json, /*strict=*/true,
                                    /*ignore_comments=*/true);
}

}  // namespace gptrain::base
