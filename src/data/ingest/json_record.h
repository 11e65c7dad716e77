// Reads JSON as Python's json module does: NaN and Infinity are numbers, numbers may have any number of digits, and the
// last of several members with the same name counts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_scanner.h"

namespace gptrain::inline data {

// Checks a whole text, then finds values in it. REQUIRES: the text outlives this. Not thread-safe.
class JsonRecord {
 public:
  // Throws JsonFault if `text` is not UTF-8, not one JSON value, or nested deeper than max_python_json_depth.
  explicit JsonRecord(std::string_view text);

  JsonSpan root() const { return root_; }
  // Returns the elements of a list in order.
  std::vector<JsonSpan> elements(JsonSpan list) const;
  struct Member {
    JsonSpan key;  // with its quotes
    JsonSpan value;
  };
  // Returns the members of an object in order.
  std::vector<Member> members(JsonSpan object) const;
  // Finds the last member with this name. Returns false if there is none.
  bool member(JsonSpan object, std::string_view name, JsonSpan& value) const;
  // Returns "array", "object", "string", "boolean", "null" or "number".
  const char* type_name(JsonSpan value) const;
  // Returns a string's characters in UTF-8. An unpaired surrogate becomes U+FFFD or, without `replace_surrogates`,
  // throws JsonFault.
  std::string string_at(JsonSpan value, bool replace_surrogates) const;

 private:
  std::string_view text_;
  JsonSpan root_{};
};

// Returns the end of the JSON value at the start of `text`, found by brackets and quotes alone; npos if it does not end
// within `text`.
size_t end_of_json_value(std::string_view text);

// Finds the values on a line of JSONL: more than one where files were joined and the first had no final newline.
// Separators are blanks, byte order marks, and the record separator of RFC 7464. A comma belongs to the value before
// it.
std::vector<JsonSpan> json_values_of_line(std::string_view line);

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

// White space between JSON values, and the record separator of RFC 7464.
constexpr std::string_view json_separators = " \t\r\n\x1E";

// Returns a message with the column and the text around the fault: "not valid JSON: column 12: ...; the text there:
// ...".
std::string json_record_fault(std::string_view text, const JsonFault& fault);

}  // namespace gptrain::data
