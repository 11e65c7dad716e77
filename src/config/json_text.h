// Parses JSON text strictly: comments are allowed, duplicate keys are found, syntax errors have a position.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline config {

// Keeps the order of the text, so that faults are listed in that order.
using Json = nlohmann::ordered_json;

struct DuplicateKey {
  std::string path;   // "model.num_layers", "data.train[0].path"
  std::string value;  // value of the later occurrence, from show_value
};

struct JsonText {
  Json document;                         // null if there is a syntax error
  std::vector<DuplicateKey> duplicates;  // the last value is in `document`; duplicate objects are merged
  std::string syntax_error;              // "3:14: ..." (line and column from 1); empty: none
};

JsonText read_json(std::string_view text);

// Returns the value on one line, short enough for a message: nested values and long text are abbreviated.
std::string show_value(const Json& value);

}  // namespace gptrain::config
