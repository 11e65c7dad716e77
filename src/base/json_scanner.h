// Checks JSON value by value, and tells a fault in plain words with its position. The library's parser (base/json.h)
// builds documents, and its messages name states of the parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gptrain::inline base {

// Reason why a text is not JSON, with the byte offset.
struct JsonFault : std::runtime_error {
  JsonFault(size_t at_, const std::string& reason) : std::runtime_error(reason), at(at_) {}
  size_t at;
};

// Byte range of a value in the text.
struct JsonSpan {
  size_t begin;
  size_t end;
};

// Objects and arrays that may be open at a time in JsonDialect::python, as many as Python's json reads by default.
constexpr int max_python_json_depth = 1000;

enum class JsonDialect {
  strict,
  with_comments,  // strict, and // and /* */ between values
  python,         // as Python's json module: NaN, Infinity and half of a surrogate pair are valid
};

// Scans a text value by value. Each method begins at the scanner's position, leaves it after the text read, and throws
// JsonFault. Nesting is limited to max_json_depth, in JsonDialect::python to max_python_json_depth. REQUIRES: the text
// outlives this.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text, JsonDialect dialect, size_t at = 0)
      : text_(text), dialect_(dialect), at_(at) {}

  size_t at() const { return at_; }

  // Scans a text that is one value. Returns the value's span.
  JsonSpan whole();

  // Scans an object at nesting level `depth`. Calls `on_member(key, value)` with the spans of each member.
  template <typename OnMember>
  void object(int depth, const OnMember& on_member) {
    ++at_;
    for (bool first = true;; first = false) {
      if (ends('}', first)) return;
      const size_t key = at_;
      const size_t key_end = name();
      const size_t begin = at_;
      value(depth);
      on_member(JsonSpan{key, key_end}, JsonSpan{begin, at_});
    }
  }

  // Scans a list at nesting level `depth`. Calls `on_element(value)` with the span of each element.
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
  bool at_end() const { return at_ >= text_.size(); }
  char next() const { return at_end() ? '\0' : text_[at_]; }
  void skip_blanks();
  void value(int depth);
  size_t name();
  bool ends(char close, bool first);
  void container(int depth);
  void string();
  void escape();
  uint32_t escaped_unit(size_t begin);
  void digits(const char* where);
  void number();

  std::string_view text_;
  JsonDialect dialect_;
  size_t at_;
};

// Returns the reason and the text around a fault: "a comma or } must follow a value; the text there: ...".
std::string json_fault_reason(std::string_view text, const JsonFault& fault);

// Position of a character, as people count.
struct TextPosition {
  size_t line;    // from 1
  size_t column;  // in characters, from 1
};
// Returns the position of the byte at offset `at`.
TextPosition position_in_text(std::string_view text, size_t at);

// Returns the first fault of a text that parse_json() refused.
JsonFault find_json_fault(std::string_view text, JsonDialect dialect = JsonDialect::strict);

// Returns the message for a text that parse_json() refused: "not valid JSON: line 3, column 12: ...".
std::string describe_json_fault(std::string_view text);

}  // namespace gptrain::base
