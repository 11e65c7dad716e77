// JSON text of documents, and documents of text. The library's writer and parser are templates that take seconds in
// every file that calls them; they are compiled once, here.
//
// All text that comes from outside is read here, and none that is deeper than max_json_depth: the library writes and
// copies values by recursion, which a file of brackets would take beyond the stack.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gptrain {

constexpr int max_json_depth = 64;  // objects and arrays that are open at a time

// What a reader takes at most, in bytes: who has more to say is no run config, hello or header.
constexpr int64_t max_config_bytes = 1'000'000;
constexpr int64_t max_tensor_header_bytes = 100'000'000;  // the limit of safetensors
constexpr int64_t max_manifest_bytes = 1'000'000'000;     // a line for each slice of each rank

// On one line, or with `indent` spaces a level. Throws nlohmann::json::type_error where a string is not UTF-8.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

// Called with each key of the outermost object, which is at depth 1, and of those in it down to a depth; what it throws
// goes on to the caller.
using JsonKey = std::function<void(const std::string& key, int depth)>;

// Throws nlohmann::json::exception where the text is not JSON or is too deep.
nlohmann::json parse_json(std::string_view text, const JsonKey& on_key = {}, int most_depth = 1);

// Gives a value that is_discarded() where the text is not JSON or is too deep.
nlohmann::json parse_json_or_discard(std::string_view text);

// Tells `events` of the text, in which comments are allowed; of its first fault, too much depth included, by
// parse_error, after which nothing comes.
void read_json_events(std::string_view text, nlohmann::json_sax<nlohmann::ordered_json>& events);

}  // namespace gptrain
