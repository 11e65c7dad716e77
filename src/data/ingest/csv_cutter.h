// Finds the ends of CSV records without parsing their fields.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace gptrain::inline data {

// Follows parse_csv_record(): a double quote opens only at the start of a field. Looks at each byte of a growing text
// once.
class CsvCutter {
 public:
  explicit CsvCutter(char delimiter) : delimiter_(delimiter) {}

  // Goes on to the end of `text`, the text of earlier calls with more behind it. `at_end`: no more follows.
  void scan(std::string_view text, bool at_end);
  // Says that the caller has removed the first `size` bytes, whole records, from the text. end() is 0 until the next
  // scan.
  void drop(size_t size);

  // Returns the end of the last whole record; 0 if there is none.
  size_t end() const { return end_; }
  // Returns the position of the quote that opens a field and is not closed; nullopt if there is none.
  std::optional<size_t> open_quote() const { return open_quote_; }

 private:
  void find_end(std::string_view text, size_t to);

  char delimiter_;
  size_t at_ = 0;  // end of the bytes that have been looked at
  size_t end_ = 0;
  std::optional<size_t> open_quote_;
};

}  // namespace gptrain::data
