#include "base/printable.h"

#include "base/append.h"

namespace gptrain::inline base {

std::string printable(std::string_view text, size_t max_bytes) {
  size_t end = text.size();
  if (end > max_bytes) {
    end = max_bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  }
  std::string shown;
  for (const char c : text.substr(0, end)) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '\n') {
      shown += "\\n";
    } else if (c == '\t') {
      shown += "\\t";
    } else if (code < 0x20 || code == 0x7f) {
      append(shown, "\\x{:02x}", code);
    } else {
      shown += c;
    }
  }
  return end < text.size() ? shown + "..." : shown;
}

}  // namespace gptrain::base
