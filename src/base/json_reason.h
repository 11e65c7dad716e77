// The reason why JSON text is refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gptrain::inline base {

// Returns the message of `fault` without the library's own prefix, such as "[json.exception.type_error.302] ".
inline std::string json_reason(const nlohmann::json::exception& fault) {
  const std::string_view text = fault.what();
  const size_t end = text.starts_with("[json.exception.") ? text.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

}  // namespace gptrain::base
