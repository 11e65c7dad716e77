// Text for people on the standard streams. A stream that cannot be written to does not end the program: printing an
// error must not throw another.
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

namespace gptrain::inline base {

// Opens each of the descriptors 0, 1 and 2 that is closed, so that no file of the program gets that number. Reading
// such a stdin gives end of file; writing to stdout fails, so that flush_out reports the lost output; stderr is
// discarded. REQUIRES: called before any file is opened.
void open_missing_standard_streams();

// Returns the text with control characters but newlines and tabs, and bytes outside of UTF-8, in the form \x1b.
std::string without_controls(std::string_view text);

// Write text without its control characters: texts of files and arguments reach no terminal as they are. Never throw.
// flush_out reports whether writing failed.
void write_out(std::string_view text);
void write_err(std::string_view text);

// Writes a command's result: byte for byte, but to a terminal without control characters.
void write_result(std::string_view text);

template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  write_out(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void print_err(fmt::format_string<Args...> format, Args&&... args) {
  write_err(fmt::format(format, std::forward<Args>(args)...));
}

// Flushes standard output. Returns "" if all output so far was written, else the system's reason.
std::string flush_out();

// Discards further standard output. Call once its reader is gone.
void give_up_out();

}  // namespace gptrain::base
