// Text of a message. Its line breaks are the program's own: those in names from files, arguments and variables are
// escaped, so that no name can look like a line of the program.
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace gptrain::inline base {

std::string one_line(std::string_view text);  // with \n in place of each line break

class Lines {
 public:
  Lines() = default;
  // Keeps the line breaks of the format and of arguments that are Lines; puts other texts on one line.
  template <typename... Args>
  explicit Lines(fmt::format_string<Args...> format, const Args&... args)
      : text_(fmt::vformat(format, fmt::make_format_args(shown(args)...))) {}
  // REQUIRES: the program has written the line breaks of `text`, or another process of the run.
  static Lines written(std::string text);
  // Puts each text on one line, with the separator between them.
  static Lines join(std::span<const std::string> texts, std::string_view separator = "\n");

  Lines& operator+=(const Lines& more);
  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }

 private:
  template <typename T>
  static decltype(auto) shown(const T& value) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      return one_line(value);
    } else {
      return (value);
    }
  }

  std::string text_;
};

}  // namespace gptrain::base

template <>
struct fmt::formatter<gptrain::Lines> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(const gptrain::Lines& lines, fmt::format_context& context) const {
    return std::copy(lines.text().begin(), lines.text().end(), context.out());
  }
};
