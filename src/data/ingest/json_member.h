// Extracts the text member of JSON objects, with json_record.h.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "data/ingest/json_record.h"

namespace gptrain::inline data {

// Called for each document. If `fault` is not empty, it is the reason why there is no text.
using OnJsonDocument = std::function<void(std::string_view text, const std::string& fault)>;

// Valid JSON that holds documents in another place than the field: their number is unknown. Not thrown for an element
// of a list, or a value of a line, beside another that has a text: it is one document without text.
struct HiddenDocuments : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct JsonMember {
  std::string field;
  bool replace_invalid = false;  // an unpaired surrogate becomes U+FFFD; else it is a fault

  // Calls `document` for each value of a line of JSONL (json_values_of_line), and for each element of a list. Throws
  // HiddenDocuments.
  void texts_of_line(std::string_view line, const OnJsonDocument& document) const;
  // Calls `document` for each element if `json` is a list, else once. Throws JsonFault if `json` is not valid, and
  // HiddenDocuments.
  void texts_of(std::string_view json, const OnJsonDocument& document) const;

 private:
  void put_documents(const JsonRecord& record, std::string_view text, const OnJsonDocument& document) const;
  bool text_in(const JsonRecord& record, JsonSpan value, std::string& text, std::string& fault) const;
  void refuse_hidden(const JsonRecord& record, std::string_view text, JsonSpan object) const;
  void refuse_columns(const JsonRecord& record, JsonSpan column) const;
};

}  // namespace gptrain::data
