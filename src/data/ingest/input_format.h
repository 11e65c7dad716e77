// The format of an input: told by its content and its name, or asked for; never a guess that takes damaged data for
// text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/ingest/inputs.h"

namespace gptrain {

// The compression that a name promises: "gzip", "zstd", "xz", "bzip2"; empty for none.
std::string_view compression_of_name(const std::filesystem::path& path);

// Throws Error(data), naming file and format, where `start`, the first bytes of an input without its compression, is
// that of a format which is not read here: an archive, another compression, Arrow, UTF-16, a Git LFS pointer and more.
void refuse_foreign_format(const std::filesystem::path& path, std::string_view start);

struct InputQuestion {
  const std::filesystem::path& path;
  std::string_view start;  // the first bytes of the content, without a byte order mark
  bool is_whole;           // nothing follows them
  const std::string& field;
  bool field_is_given;               // then an input without fields is refused
  std::optional<InputKind> asked{};  // in place of what name and content say
};

struct InputFormat {
  InputKind kind = InputKind::text;
  char csv_delimiter = ',';
  size_t csv_column = 0;    // of the documents
  size_t csv_columns = 0;   // of each record
  size_t header_bytes = 0;  // before the first record
};

// Throws Error(data), naming the file, where the name promises what the content is not, or where neither says enough.
InputFormat find_input_format(const InputQuestion& question);

// The fields of the record at the start of `text` and its length with the line's end; no length where it does not end
// in `text` (unless `at_end`, when the end of the text ends it).
size_t parse_csv_record(std::string_view text, bool at_end, std::vector<std::string>& fields, char delimiter = ',');

// "JSONL", "one text": as messages name a format.
std::string_view format_name(InputKind kind);

// Which inputs were taken for which format.
class InputFormats {
 public:
  // The number of an input counts once, in the order of the inputs. `delimiter`: of a table.
  void add(size_t number, const std::filesystem::path& input, InputKind kind, char delimiter,
           std::string_view compression);
  // "a.jsonl.gz as JSONL (gzip)", "12 files as CSV, a.csv the first": one for each format, in the order of the inputs.
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

}  // namespace gptrain
