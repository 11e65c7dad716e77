// Detects the format of an input from its content and name, unless the user names it. Damaged data are never taken for
// plain text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/ingest/inputs.h"

namespace gptrain::inline data {

// Returns the compression by the suffix of a name: "gzip", "zstd", "xz", "bzip2"; empty: none.
std::string_view compression_of_name(const std::filesystem::path& path);

struct InputQuestion {
  const std::filesystem::path& path;
  std::string_view start;  // the first bytes of the content, without a byte order mark
  bool is_whole;           // `start` is the whole content
  const std::string& field;
  bool field_is_given;               // the user named the field: inputs without fields are refused
  std::optional<InputKind> asked{};  // format named by the user; nullopt: detected
  std::string_view compression{};    // compression of the file, whose decompressed content `start` is; empty: none
};

struct InputFormat {
  InputKind kind = InputKind::text;
  char csv_delimiter = ',';
  size_t csv_column = 0;   // column of the text
  size_t csv_columns = 0;  // fields per record
  size_t header_bytes = 0;
};

// Throws Error(data), with the file's name, if the content contradicts the name, or if neither tells the format.
InputFormat find_input_format(const InputQuestion& question);

// Parses the fields of the record at the start of `text`. Returns the record's length, its line's end included; 0 if
// the record does not end within `text`. `at_end`: no text follows, so that the end of `text` ends the record.
size_t parse_csv_record(std::string_view text, bool at_end, std::vector<std::string>& fields, char delimiter = ',');

// Throws Error(data) for a table with a quoted field that opens in `line` and does not close.
[[noreturn]] void refuse_open_quote(const std::filesystem::path& path, int64_t line);

// Returns a format's name for messages: "JSONL", "one text".
std::string_view format_name(InputKind kind);
// Also tells tables apart by the delimiter of their fields: "TSV", "CSV with ;".
std::string format_name(InputKind kind, char delimiter);

// Counts inputs by detected format.
class InputFormats {
 public:
  // Adds input `number`; consecutive calls with the same number count once. `delimiter`: between CSV fields.
  void add(size_t number, const std::filesystem::path& input, InputKind kind, char delimiter,
           std::string_view compression);
  // Returns a line per format, in the order of the inputs: "a.jsonl.gz as JSONL (gzip)", "12 files as CSV, a.csv the
  // first".
  std::vector<std::string> lines() const;

 private:
  struct Count {
    std::string format;
    std::string first;
    int64_t inputs = 0;
  };
  std::vector<Count> counts_;
  std::optional<size_t> last_input_;
};

}  // namespace gptrain::data
