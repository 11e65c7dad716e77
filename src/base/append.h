// Formatted text at the end of a string. fmt::format_to is a template with the whole formatter in it, which every file
// that calls it would compile for seconds; this compiles it once.
#pragma once

#include <fmt/core.h>
#include <string>

namespace gptrain {

void append_formatted(std::string& text, fmt::string_view format, fmt::format_args arguments);

// Allocates nothing where the capacity of `text` is enough.
template <typename... Args>
void append(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  append_formatted(text, format, fmt::make_format_args(args...));
}

}  // namespace gptrain
