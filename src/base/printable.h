// Text from outside within a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gptrain {

// The text on one line: control characters as \n, \t or \x1b, and what goes beyond `max_bytes` as "..." (no UTF-8
// character is cut in two).
std::string printable(std::string_view text, size_t max_bytes = 200);

}  // namespace gptrain
