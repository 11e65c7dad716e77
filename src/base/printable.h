// Untrusted text inside a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gptrain::inline base {

// Returns the text on one line: control characters as \n, \t or \x1b; text beyond `max_bytes` is cut at a UTF-8
// character and ends in "...".
std::string printable(std::string_view text, size_t max_bytes = 200);

}  // namespace gptrain::base
