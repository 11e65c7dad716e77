// JSON text to a document, strictly: comments are allowed, duplicate keys are found, syntax errors have a place.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

// Keeps the order of the text, so that faults are listed in it.
using Json = nlohmann::ordered_json;

struct DuplicateKey {
  std::string path;   // "model.num_layers", "data.train[0].path"
  std::string value;  // of the later one, as show_value gives it
};

struct JsonText {
  Json document;                         // null after a syntax error
  std::vector<DuplicateKey> duplicates;  // the later value stands in `document`; objects are merged
  std::string syntax_error;              // "3:14: what is wrong" (line and column from 1); empty if none
};

JsonText read_json(std::string_view text);

// One line, short enough for a message: nested values and long text are cut.
std::string show_value(const Json& value);

}  // namespace gptrain
