#include "base/lines.h"

#include <utility>

namespace gptrain::inline base {

std::string one_line(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    if (c == '\n') {
      shown += "\\n";
    } else {
      shown += c;
    }
  }
  return shown;
}

Lines Lines::written(std::string text) {
  Lines lines;
  lines.text_ = std::move(text);
  return lines;
}

Lines Lines::join(std::span<const std::string> texts, std::string_view separator) {
  Lines lines;
  for (const std::string& text : texts) {
    if (&text != &texts.front()) lines.text_ += separator;
    lines.text_ += one_line(text);
  }
  return lines;
}

Lines& Lines::operator+=(const Lines& more) {
  text_ += more.text_;
  return *this;
}

}  // namespace gptrain::base
