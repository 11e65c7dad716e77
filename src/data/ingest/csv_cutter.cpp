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
    const size_t newline = text.substr(at_, quote - at_).rfind('\n');
    if (newline != std::string_view::npos) end_ = at_ + newline + 1;
    at_ = std::min(quote + 1, text.size());
    if (quote == text.size()) return;
    if (quote == 0 || text[quote - 1] == delimiter_ || text[quote - 1] == '\n') open_quote_ = quote;
  }
}

void CsvCutter::drop(size_t size) {
  at_ -= std::min(size, at_);
  end_ = 0;
  if (open_quote_) *open_quote_ -= size;
}

}  // namespace gptrain::data
