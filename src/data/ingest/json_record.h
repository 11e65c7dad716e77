// JSON as Python's json module writes and reads it: NaN and Infinity are numbers, a number has as many digits as it
// likes, of a member that stands twice the last one counts.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

// Why a text is not JSON, and at which byte.
struct JsonFault : std::runtime_error {
  JsonFault(size_t at_, const std::string& reason) : std::runtime_error(reason), at(at_) {}
  size_t at;
};

// A value of a text, not yet looked into.
struct JsonSpan {
  size_t begin;
  size_t end;
};

// Checks all of a text, and finds what is asked for. One thread at a time; the text is borrowed.
class JsonRecord {
 public:
  // Throws JsonFault where `text` is not UTF-8, not one JSON value, or nested deeper than max_json_depth.
  explicit JsonRecord(std::string_view text);

  JsonSpan root() const { return root_; }
  // The elements of a list, in order; the value itself where it is none.
  std::vector<JsonSpan> elements() const;
  // The last member of this name of an object; false where there is none.
  bool member(JsonSpan object, std::string_view name, JsonSpan& value) const;
  // "array", "object", "string", "boolean", "null" or "number".
  const char* type_name(JsonSpan value) const;
  // The characters of a string. A surrogate without its other half becomes U+FFFD, or a JsonFault.
  std::string string_at(JsonSpan value, bool replace_surrogates) const;

 private:
  std::string_view text_;
  JsonSpan root_{};
};

// The place behind the JSON value at the start of `text`, told by its brackets and quotes alone; npos where it does not
// end in `text`.
size_t end_of_json_value(std::string_view text);

// "not valid JSON: column 12: ..., in: ...": a fault as people can find it in its line.
std::string describe_json_fault(std::string_view text, const JsonFault& fault);

}  // namespace gptrain
