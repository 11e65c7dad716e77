// Text for people on the standard streams. A stream that cannot be written to is no reason to end: what is printed on
// the way out of an error must not throw another.
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

namespace gptrain {

// Opens those of the descriptors 0, 1 and 2 that are closed, so that no file of the program becomes one of them. What
// is read there is empty; writing to standard output fails, as its reader is missed, and standard error goes nowhere.
// Before anything opens a file.
void open_missing_standard_streams();

// A failure shows when the stream is flushed; see flush_out.
void write_out(std::string_view text);
void write_err(std::string_view text);

// Control characters but for newlines and tabs as \x1b: texts of files and arguments reach no terminal as they are.
std::string without_controls(std::string_view text);

template <typename... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  write_out(without_controls(fmt::format(format, std::forward<Args>(args)...)));
}

template <typename... Args>
void print_err(fmt::format_string<Args...> format, Args&&... args) {
  write_err(without_controls(fmt::format(format, std::forward<Args>(args)...)));
}

// Empty if all of standard output so far has been written, else why not, in the system's words.
std::string flush_out();

// Lets standard output go nowhere from here on: nobody takes it.
void give_up_out();

}  // namespace gptrain
