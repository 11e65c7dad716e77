// The text member of JSON objects, by json_record.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gptrain {

// Called for each document: its text, or why there is none where `fault` is not empty.
using OnJsonDocument = std::function<void(std::string_view text, const std::string& fault)>;

struct JsonMember {
  std::string field;
  bool replace_invalid = false;  // half of a surrogate pair becomes U+FFFD; else it is a fault

  // Gives `text` the member of the object that `json` is, or `fault` why there is none: not valid JSON, no object, no
  // such member, no string.
  bool text_of(std::string_view json, std::string& text, std::string& fault) const;
  // Calls `document` for each element of the list that `json` is, or once if it is an object. Throws JsonFault where
  // `json` is not valid.
  void texts_of(std::string_view json, const OnJsonDocument& document) const;

  // The faults of JSON that is valid. `type` is what stands there instead.
  std::string no_object(const char* type) const;
  std::string no_member() const;
  std::string no_string(const char* type) const;
};

}  // namespace gptrain
