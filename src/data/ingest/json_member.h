// Extracts the text member of JSON objects, with json_record.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gptrain::inline data {

// Called for each document. If `fault` is not empty, it is the reason why there is no text.
using OnJsonDocument = std::function<void(std::string_view text, const std::string& fault)>;

struct JsonMember {
  std::string field;
  bool replace_invalid = false;  // an unpaired surrogate becomes U+FFFD; else it is a fault

  // Sets `text` to the member of the object `json`. Returns false, with the reason in `fault`, if `json` is invalid or
  // not an object, or the member is missing or not a string.
  bool text_of(std::string_view json, std::string& text, std::string& fault) const;
  // Calls `document` for each element if `json` is a list, else once. Throws JsonFault if `json` is not valid.
  void texts_of(std::string_view json, const OnJsonDocument& document) const;

  // Messages for valid JSON of the wrong shape. `type`: the type found instead.
  std::string no_object(const char* type) const;
  std::string no_member() const;
  std::string no_string(const char* type) const;
};

}  // namespace gptrain::data
