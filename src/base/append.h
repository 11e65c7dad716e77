// Appends formatted text to a string. fmt::format_to is a template that every calling file would compile for seconds;
// append_formatted is compiled once.
#pragma once

#include <fmt/core.h>
#include <string>

namespace gptrain::inline base {

void append_formatted(std::string& text, fmt::string_view format, fmt::format_args arguments);

// Allocates only if the capacity of `text` is too small.
template <typename... Args>
void append(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  append_formatted(text, format, fmt::make_format_args(args...));
}

}  // namespace gptrain::base
