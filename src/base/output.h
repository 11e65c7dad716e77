// Text for people on the standard streams. A stream that cannot be written to does not end the program: printing an
// error must not throw another.
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>

#include "base/lines.h"

namespace gptrain::inline base {

// Returns the text with control characters but newlines and tabs, characters that turn or break lines, and bytes
// outside of UTF-8, in the form \x1b.
std::string without_controls(std::string_view text);

// Write text without its control characters: texts of files and arguments reach no terminal as they are. Line breaks
// pass: REQUIRES: the program has written them. Never throw.
void write_out(std::string_view text);
void write_err(std::string_view text);

// Writes a command's result: byte for byte, but to a terminal without control characters.
void write_result(std::string_view text);

// Writes JSON text in the same way; the strings in it keep their values.
void write_json(std::string_view text);

// Write a message, with line breaks as in Lines.
template <typename... Args>
void print_out(fmt::format_string<Args...> format, const Args&... args) {
  write_out(Lines(format, args...).text());
}

template <typename... Args>
void print_err(fmt::format_string<Args...> format, const Args&... args) {
  write_err(Lines(format, args...).text());
}

}  // namespace gptrain::base
