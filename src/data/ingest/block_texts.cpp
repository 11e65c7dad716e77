#include "data/ingest/block_texts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/ingest/row_texts.h"
#include "data/tokenizer/unicode.h"

namespace gptrain {

BlockTexts::BlockTexts(std::string field, bool replace_invalid_utf8, bool any_bytes)
    : replace_invalid_utf8_(replace_invalid_utf8), any_bytes_(any_bytes), json_(std::move(field)) {}

void BlockTexts::read(const Block& block, const OnText& on_text, const OnFault& on_fault) {
  in_rows_ = block.kind == InputKind::rows;
  switch (block.kind) {
    case InputKind::text:
      return check(block.text(), block.first_line, on_text, on_fault);
    case InputKind::jsonl:
      return read_jsonl(block, on_text, on_fault);
    case InputKind::csv:
      return read_csv(block, on_text, on_fault);
    case InputKind::rows:
      return read_rows(block, on_text, on_fault);
    case InputKind::json: {
      int64_t number = 0;
      return json_.texts_of(block.text(), [&](std::string_view text, const std::string& reason) {
        ++number;
        if (reason.empty()) return on_text(text, block.first_line);
        on_fault(block.first_line, fmt::format("document {}: {}", number, reason));
      });
    }
  }
}

void BlockTexts::read_jsonl(const Block& block, const OnText& on_text, const OnFault& on_fault) {
  std::string replaced;
  std::string_view rest = block.text();
  if (replace_invalid_utf8_ && find_invalid_utf8(rest) < rest.size()) {
    replaced = replace_invalid_utf8(rest);
    const size_t size = replaced.size();
    replaced.append(block_padding, '\0');
    rest = std::string_view(replaced).substr(0, size);
  }
  std::string reason;
  for (int64_t number = block.first_line; !rest.empty(); ++number) {
    const size_t newline = rest.find('\n');
    const std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(newline == std::string_view::npos ? rest.size() : newline + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::string_view text;
    if (json_.text_of(line, text, reason)) {
      on_text(text, number);
    } else {
      on_fault(number, reason);
    }
  }
}

void BlockTexts::read_csv(const Block& block, const OnText& on_text, const OnFault& on_fault) {
  std::vector<std::string> fields;
  std::string_view rest = block.text();
  for (int64_t line = block.first_line; !rest.empty();) {
    const size_t length = parse_csv_record(rest, true, fields);
    const bool is_blank = fields.size() == 1 && fields[0].empty();
    if (fields.size() == block.csv_columns) {
      check(fields[block.csv_column], line, on_text, on_fault);
    } else if (!is_blank) {
      on_fault(line, fmt::format("{} fields where the header has {}", fields.size(), block.csv_columns));
    }
    line += std::count(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(length), '\n');
    rest.remove_prefix(length);
  }
}

void BlockTexts::read_rows(const Block& block, const OnText& on_text, const OnFault& on_fault) {
  std::string_view rest = block.text();
  for (int64_t row = block.first_line; !rest.empty(); ++row) {
    uint32_t length = 0;
    std::memcpy(&length, rest.data(), sizeof length);
    rest.remove_prefix(sizeof length);
    if (length == null_row_text) {
      on_fault(row, "no text: null");
      continue;
    }
    check(rest.substr(0, length), row, on_text, on_fault);
    rest.remove_prefix(length);
  }
}

void BlockTexts::check(std::string_view text, int64_t line, const OnText& on_text, const OnFault& on_fault) {
  if (any_bytes_ && !replace_invalid_utf8_) return on_text(text, line);
  const size_t invalid = find_invalid_utf8(text);
  if (invalid == text.size()) return on_text(text, line);
  if (replace_invalid_utf8_) return on_text(replace_invalid_utf8(text), line);
  const int64_t lines_before = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(invalid), '\n');
  on_fault(in_rows_ ? line : line + lines_before, fmt::format("not UTF-8: byte 0x{:02x} (--replace-invalid puts U+FFFD in its place)",
                                static_cast<uint8_t>(text[invalid])));
}

}  // namespace gptrain
