// JSON text to and from documents. The library's writer and parser are templates that take seconds to compile in every
// file that calls them; here they are compiled once.
//
// All text from outside the program is read through these functions, which refuse text nested deeper than
// max_json_depth: the library writes and copies values by recursion, and deep nesting would overflow the stack.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gptrain::inline base {

constexpr int max_json_depth = 64;  // objects and arrays that may be open at a time

// Input size limits in bytes; larger input is rejected.
constexpr int64_t max_config_bytes = 1'000'000;
constexpr int64_t max_tensor_header_bytes = 100'000'000;  // the limit of safetensors
constexpr int64_t max_manifest_bytes = 1'000'000'000;     // the manifest has a line for each slice of each rank

// Returns JSON text on one line, or with `indent` spaces a level. Throws nlohmann::json::type_error if a string is not
// UTF-8.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

// Called for each key of the outermost object (depth 1) and of nested objects down to `most_depth`. Its exceptions pass
// through parse_json.
using JsonKey = std::function<void(const std::string& key, int depth)>;

// Throws nlohmann::json::exception if the text is not JSON or too deep.
nlohmann::json parse_json(std::string_view text, const JsonKey& on_key = {}, int most_depth = 1);

// Returns a value whose is_discarded() is true if the text is not JSON or too deep.
nlohmann::json parse_json_or_discard(std::string_view text);

// Parses text with comments and calls the methods of `events`. At the first fault, too much depth included, calls
// events.parse_error and stops.
void read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::ordered_json>& events);

}  // namespace gptrain::base
