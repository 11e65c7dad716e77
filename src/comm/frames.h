// Reads the content of frames, which may come from anyone: nothing here throws because of it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace gptrain::inline comm {

// Returns the string member `name`; empty if `json` is not an object or has none.
std::string text_member(const nlohmann::json& json, const char* name);

// Returns the integer member `name` if it is in [least, most]; nullopt otherwise.
std::optional<int64_t> number_member(const nlohmann::json& json, const char* name, int64_t least, int64_t most);

}  // namespace gptrain::comm
