#include "data/ingest/blocks.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "data/ingest/foreign_formats.h"
#include "data/ingest/input_format.h"
#include "data/ingest/json_record.h"

namespace gptrain::inline data {
namespace {

constexpr size_t block_bytes = size_t{1} << 20;

// Counts in bytes while they do not overflow, so that compilers vectorize the loop.
int64_t count_of(char wanted, std::string_view text) {
  int64_t count = 0;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, 255);
    uint8_t in_piece = 0;
    for (const char c : piece) in_piece = static_cast<uint8_t>(in_piece + (c == wanted));
    count += in_piece;
    text.remove_prefix(piece.size());
  }
  return count;
}

}  // namespace

int64_t count_lines(std::string_view text) {
  const int64_t lines = count_of('\n', text);
  return lines > 0 ? lines : count_of('\r', text);
}

BlockReader::BlockReader(const std::vector<TextInput>& inputs, ReadOptions options,
                         std::function<size_t(std::string_view)> safe_cut, BlockPosition from)
    : inputs_(inputs), options_(std::move(options)), safe_cut_(std::move(safe_cut)), position_(from) {
  for (size_t i = 0; i < from.input; ++i) bytes_before_ += inputs_[i].size_bytes;
}

// Fills pending_ up to `wanted_` bytes or the end of the input. Returns false if no byte was added.
bool BlockReader::read_more() {
  const size_t before = pending_.size();
  if (at_end_ || wanted_ <= before) return false;
  pending_.resize(wanted_);
  const size_t count = source_->read(pending_.data() + before, wanted_ - before);
  at_end_ = count < wanted_ - before;
  pending_.resize(before + count);
  return count > 0;
}

void BlockReader::open() {
  const std::filesystem::path& path = inputs_[position_.input].path;
  source_ = std::make_unique<ByteSource>(path);
  pending_.clear();
  at_end_ = false;
  wanted_ = block_bytes;
  read_more();
  form_ = {};
  form_.field = options_.fields.of(path);
  form_.compression = source_->compression();
  form_.kind_was_asked = options_.kind.has_value();
  const std::string_view promised = compression_of_name(path);
  if (!promised.empty() && form_.compression.empty() && !pending_.empty()) {
    refuse_foreign_format(path, pending_);
    throw Error(ExitCode::data, "{} is named as {} data, but does not hold such data: rename it, or fetch it again",
                path.native(), promised);
  }
  if (is_parquet(pending_)) return open_parquet(path);
  if (options_.kind != InputKind::text) refuse_foreign_format(path, pending_);
  recognize(path);
  // A resumed run skips the bytes that are done.
  for (auto left = static_cast<size_t>(position_.offset); left > 0;) {
    const size_t dropped = std::min(left, pending_.size());
    pending_.erase(0, dropped);
    left -= dropped;
    wanted_ = block_bytes;
    if (!read_more() && left > 0) throw Error(ExitCode::data, "{} is shorter than it was", path.native());
  }
}

void BlockReader::open_parquet(const std::filesystem::path& path) {
  if (path == "-") throw Error(ExitCode::usage, "a Parquet file cannot be read from the standard input; name it");
  if (!form_.compression.empty()) {
    throw Error(ExitCode::data, "{} is a Parquet file within {} data: decompress it", path.native(), form_.compression);
  }
  if (options_.kind.value_or(InputKind::rows) != InputKind::rows) {
    throw Error(ExitCode::data, "{} is a Parquet file, not {}: give another --format", path.native(),
                format_name(*options_.kind));
  }
  source_.reset();
  parquet_ = std::make_unique<ParquetTexts>(path, form_.field, position_.offset);
}

void BlockReader::recognize(const std::filesystem::path& path) {
  std::string_view start = pending_;
  if (start.starts_with(byte_order_mark)) start.remove_prefix(byte_order_mark.size());
  const InputFormat format = find_input_format({.path = path,
                                                .start = start,
                                                .is_whole = at_end_,
                                                .field = form_.field,
                                                .field_is_given = options_.fields.is_given(path),
                                                .asked = options_.kind,
                                                .compression = form_.compression});
  form_.kind = format.kind;
  form_.csv_delimiter = format.csv_delimiter;
  csv_ = CsvCutter(format.csv_delimiter);
  form_.csv_column = format.csv_column;
  form_.csv_columns = format.csv_columns;
  // A byte order mark at the start and a table's header are dropped; offsets count from there.
  const auto skipped = start.data() - pending_.data() + static_cast<std::ptrdiff_t>(format.header_bytes);
  if (position_.offset == 0) position_.line += std::count(pending_.begin(), pending_.begin() + skipped, '\n');
  pending_.erase(0, static_cast<size_t>(skipped));
}

size_t BlockReader::last_csv_record() {
  csv_.scan(pending_, at_end_);
  if (!at_end_) return csv_.end();
  if (const auto quote = csv_.open_quote()) {
    refuse_open_quote(inputs_[position_.input].path,
                      position_.line + count_lines(std::string_view(pending_).substr(0, *quote)));
  }
  return pending_.size();
}

// Returns the bytes of pending_ that make a block; 0 if more must be read first.
size_t BlockReader::find_cut() {
  if (form_.kind == InputKind::csv) return last_csv_record();
  if (at_end_) return pending_.size();
  switch (form_.kind) {
    case InputKind::text:
      return safe_cut_(pending_);
    case InputKind::jsonl: {
      // JSON has carriage returns between values only.
      const size_t newline = pending_.rfind('\n');
      return (newline == std::string::npos ? pending_.rfind('\r') : newline) + 1;
    }
    case InputKind::csv:
    case InputKind::json:
    case InputKind::rows:
      return 0;
  }
  return 0;
}

// Throws Error(data) if the record or text that begins here is longer than any sound one, so that input without an end
// does not take all memory.
void BlockReader::require_end_in_reach() const {
  const bool is_record = form_.kind == InputKind::jsonl || form_.kind == InputKind::csv;
  const std::filesystem::path& path = inputs_[position_.input].path;
  const int64_t most_bytes = is_record || path == "-" ? options_.max_record_bytes : options_.max_whole_bytes;
  if (std::ssize(pending_) < most_bytes) return;
  const std::string remedy = is_record
                                 ? "look for a missing line end, or a missing double quote"
                                 : (path == "-" ? "write it to a file, and name that" : "split it into several files");
  throw Error(ExitCode::data, "{}, line {}: the {} that begins here has more than {}, the limit{}: {}",
              path == "-" ? "the standard input" : path.native(), position_.line, is_record ? "record" : "text",
              format_bytes(static_cast<double>(most_bytes)),
              path == "-" && !is_record ? " for a text of the standard input that is read as a whole" : "", remedy);
}

TextBlock BlockReader::take(size_t size) {
  TextBlock block = form_;
  block.input = position_.input;
  block.first_line = position_.line;
  block.offset = position_.offset;
  block.ends_document = at_end_ && size == pending_.size();
  csv_.drop(size);
  spare_.assign(pending_, size);
  block.bytes = std::exchange(pending_, std::exchange(spare_, {}));
  block.bytes.resize(size);
  position_.line += count_lines(block.bytes);
  position_.offset += static_cast<int64_t>(size);
  block.bytes.append(block_padding, '\0');
  block.file_bytes_read = bytes_before_ + source_->file_bytes_read();
  wanted_ = block_bytes;
  document_ended_ = block.ends_document;
  return block;
}

void BlockReader::go_to_next_input(int64_t bytes_of_this) {
  bytes_before_ += bytes_of_this;
  source_.reset();
  parquet_.reset();
  position_ = {position_.input + 1, 0, 1};
}

// Returns nullopt at the end of the file.
std::optional<TextBlock> BlockReader::next_rows() {
  TextBlock block = form_;
  block.kind = InputKind::rows;
  block.input = position_.input;
  block.offset = position_.offset;
  block.first_line = position_.offset + 1;
  const int64_t rows = parquet_->read(block.bytes, block_bytes);
  const int64_t size_bytes = inputs_[position_.input].size_bytes;
  if (rows == 0) {
    go_to_next_input(size_bytes);
    return std::nullopt;
  }
  position_.offset += rows;
  position_.line = position_.offset + 1;
  const double done = static_cast<double>(position_.offset) / static_cast<double>(parquet_->num_rows());
  block.file_bytes_read = bytes_before_ + static_cast<int64_t>(done * static_cast<double>(size_bytes));
  block.bytes.append(block_padding, '\0');
  return block;
}

std::optional<TextBlock> BlockReader::next() {
  while (position_.input < inputs_.size()) {
    if (!source_ && !parquet_) open();
    if (parquet_) {
      if (std::optional<TextBlock> block = next_rows()) return block;
      continue;
    }
    read_more();
    size_t cut = find_cut();
    while (cut == 0 && !at_end_) {
      require_end_in_reach();
      wanted_ = std::max(wanted_, pending_.size()) * 2;
      read_more();
      cut = find_cut();
    }
    const bool is_first = position_.offset == 0;
    std::optional<TextBlock> block;
    // An empty text file is an empty document.
    if (cut > 0 || (form_.kind == InputKind::text && (is_first || !document_ended_))) block = take(cut);
    if (at_end_ && pending_.empty()) {
      go_to_next_input(source_->file_bytes_read());
    }
    if (block) return block;
  }
  return std::nullopt;
}

}  // namespace gptrain::data
