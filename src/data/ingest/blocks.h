// Cuts inputs into blocks that can be parsed independently.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/ingest/byte_source.h"
#include "data/ingest/csv_cutter.h"
#include "data/ingest/inputs.h"
#include "data/ingest/parquet_texts.h"

namespace gptrain::inline data {

// Zero bytes after a block's text, so that vector code may read past its end.
constexpr size_t block_padding = 64;

// A piece of an input: whole lines of JSONL, whole records of CSV, rows as append_row_text() writes them, a whole JSON
// input, or a part of a text that ends where the tokenizer splits the text anyway.
struct TextBlock {
  size_t input = 0;  // index of the TextInput
  InputKind kind = InputKind::text;
  std::string bytes;       // text(), then block_padding zero bytes
  int64_t first_line = 1;  // number of the first line or row in the input, from 1
  // Offset of the first byte in the decompressed input, without its header, in bytes; in Parquet files, in rows.
  int64_t offset = 0;
  std::string field;  // member or column that holds the text
  char csv_delimiter = ',';
  size_t csv_column = 0;         // column of the text
  size_t csv_columns = 0;        // fields per record
  bool ends_document = true;     // InputKind::text: the document ends with this block
  bool kind_was_asked = false;   // the user named the format
  std::string_view compression;  // "gzip", ...; empty: not compressed
  int64_t file_bytes_read = 0;   // bytes read of all input files, compressed or not, up to the end of this block

  std::string_view text() const { return std::string_view(bytes).substr(0, bytes.size() - block_padding); }
};

// Returns the number of line ends: line feeds or, in a text without any, carriage returns.
int64_t count_lines(std::string_view text);

// Start of the next block. `offset` and `line` are TextBlock's offset and first_line.
struct BlockPosition {
  size_t input = 0;
  int64_t offset = 0;
  int64_t line = 1;
};

// Reads inputs in order. Detects their formats (input_format.h). Blocks depend on the inputs and options alone. Not
// thread-safe.
class BlockReader {
 public:
  // Borrows `inputs`. `safe_cut` returns a position where a text may be cut, or 0, as last_safe_cut() does.
  BlockReader(const std::vector<TextInput>& inputs, ReadOptions options,
              std::function<size_t(std::string_view)> safe_cut, BlockPosition from = {});

  // Returns the next block; nullopt at the end. Throws Error(data) with the file, and with the line if known;
  // Error(usage) for Parquet on the standard input.
  std::optional<TextBlock> next();
  // Gives the memory of `text` to a later block.
  void reuse(std::string text) { spare_ = std::move(text); }

 private:
  void open();
  void open_parquet(const std::filesystem::path& path);
  void recognize(const std::filesystem::path& path);
  std::optional<TextBlock> next_rows();
  void go_to_next_input(int64_t bytes_of_this);
  bool read_more();
  size_t find_cut();
  void require_end_in_reach() const;
  size_t last_csv_record();
  TextBlock take(size_t size);

  const std::vector<TextInput>& inputs_;
  ReadOptions options_;
  std::function<size_t(std::string_view)> safe_cut_;
  BlockPosition position_;
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<ParquetTexts> parquet_;  // replaces source_ for Parquet files
  TextBlock form_;                         // template of the open input's blocks: its format, no bytes
  CsvCutter csv_{','};
  std::string pending_;
  std::string spare_;
  bool at_end_ = false;
  bool document_ended_ = true;
  size_t wanted_ = 0;
  int64_t bytes_before_ = 0;  // bytes of the input files before the open one
};

}  // namespace gptrain::data
