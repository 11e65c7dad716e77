#include "data/ingest/csv_cutter.h"

#include <algorithm>

namespace gptrain::inline data {

void CsvCutter::scan(std::string_view text, bool at_end) {
  while (at_ < text.size()) {
    const size_t quote = std::min(text.find('"', at_), text.size());
    const bool is_last = quote + 1 >= text.size();
    if (open_quote_) {
      // A quote at the end of the text so far closes the field, or is the first of two.
      at_ = quote;
      if (quote == text.size() || (is_last && !at_end)) return;
      const bool is_doubled = !is_last && text[quote + 1] == '"';
      at_ += is_doubled ? 2 : 1;
      if (!is_doubled) open_quote_.reset();
      continue;
    }
    find_end(text, quote);
    if (quote == text.size()) {
      at_ = text.size() - (text.ends_with('\r') ? 1 : 0);
      return;
    }
    at_ = quote + 1;
    const char before = quote == 0 ? '\n' : text[quote - 1];
    if (before == delimiter_ || before == '\n' || before == '\r') open_quote_ = quote;
  }
}

// Finds the last end of a record in text[at_, to), which is outside of quotes. A carriage return at the end of the text
// so far may be the first half of an end.
void CsvCutter::find_end(std::string_view text, size_t to) {
  std::string_view part = text.substr(at_, to - at_);
  if (to == text.size() && part.ends_with('\r')) part.remove_suffix(1);
  const size_t last = part.find_last_of("\r\n");
  if (last != std::string_view::npos) end_ = at_ + last + 1;
}

void CsvCutter::drop(size_t size) {
  at_ -= std::min(size, at_);
  end_ = 0;
  if (open_quote_) *open_quote_ -= size;
}

}  // namespace gptrain::data
