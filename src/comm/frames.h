// What stands in a frame, which anybody may have written: nothing here throws for what it is.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace gptrain {

// Empty unless `json` is an object that has a text of that name.
std::string text_member(const nlohmann::json& json, const char* name);

// Nothing unless `json` is an object that has a whole number from `least` to `most` of that name.
std::optional<int64_t> number_member(const nlohmann::json& json, const char* name, int64_t least, int64_t most);

}  // namespace gptrain
