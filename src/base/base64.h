// Base64 of RFC 4648, with padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gptrain::inline base {

std::string to_base64(std::string_view bytes);
// Returns nullopt if `text` is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace gptrain::base
