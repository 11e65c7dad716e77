// JSON text of documents, and documents of text. The library's writer and parser are templates that take seconds in
// every file that calls them; they are compiled once, here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gptrain {

// On one line, or with `indent` spaces a level. Throws nlohmann::json::type_error where a string is not UTF-8.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

// Throws nlohmann::json::parse_error where the text is not JSON.
nlohmann::json parse_json(std::string_view text);

// Gives a value that is_discarded() where the text is not JSON.
nlohmann::json parse_json_or_discard(std::string_view text);

}  // namespace gptrain
