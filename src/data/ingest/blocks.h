// Inputs cut into blocks that can be read apart from each other.
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
#include "data/ingest/inputs.h"
#include "data/ingest/parquet_texts.h"

namespace gptrain {

// Bytes behind a block's text that may be read, and are zero.
constexpr size_t block_padding = 64;

// A piece of an input: whole lines of JSONL, whole records of CSV, rows as append_row_text() writes them, the whole of
// a JSON input, or a part of a text that ends where a tokenizer parts it anyway.
struct TextBlock {
  size_t input = 0;  // number of the TextInput
  InputKind kind = InputKind::text;
  std::string bytes;       // with block_padding behind
  int64_t first_line = 1;  // of the input, from 1; of rows their number
  int64_t offset = 0;      // of the first byte in the input, without its compression and header; of rows their number
  std::string field;       // member or column that holds the text
  char csv_delimiter = ',';
  size_t csv_column = 0;         // of the documents
  size_t csv_columns = 0;        // of each record
  bool ends_document = true;     // of text: the document ends here
  bool kind_was_asked = false;   // not told by name and content
  std::string_view compression;  // "gzip", ..; empty for none
  int64_t file_bytes_read = 0;   // of all inputs, up to the end of this block

  std::string_view text() const { return std::string_view(bytes).substr(0, bytes.size() - block_padding); }
};

// Where reading goes on.
struct BlockPosition {
  size_t input = 0;
  int64_t offset = 0;
  int64_t line = 1;
};

// Reads inputs in order, one thread; their kinds are those of input_format.h. Blocks depend on the inputs and the
// options alone.
class BlockReader {
 public:
  // `safe_cut` gives where a text may be cut, as last_safe_cut().
  BlockReader(const std::vector<TextInput>& inputs, ReadOptions options,
              std::function<size_t(std::string_view)> safe_cut, BlockPosition from = {});

  // The next block; none at the end. Throws Error(data) naming the file, and the line where there is one.
  std::optional<TextBlock> next();
  // A later block takes the memory of `text`.
  void reuse(std::string text) { spare_ = std::move(text); }

 private:
  void open();
  void open_parquet(const std::filesystem::path& path);
  void recognize(const std::filesystem::path& path);
  std::optional<TextBlock> next_rows();
  void go_to_next_input(int64_t bytes_of_this);
  bool read_more();
  size_t find_cut();
  size_t last_csv_record();
  TextBlock take(size_t size);

  const std::vector<TextInput>& inputs_;
  ReadOptions options_;
  std::function<size_t(std::string_view)> safe_cut_;
  BlockPosition position_;
  std::unique_ptr<ByteSource> source_;
  std::unique_ptr<ParquetTexts> parquet_;  // in place of it
  TextBlock form_;                         // kind and columns of the open input
  std::string pending_;
  std::string spare_;
  bool at_end_ = false;
  bool document_ended_ = true;
  size_t wanted_ = 0;
  int64_t bytes_before_ = 0;  // of the inputs before the open one
};

}  // namespace gptrain
