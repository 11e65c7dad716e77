#include "data/ingest/block_texts.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "data/ingest/input_format.h"
#include "data/ingest/json_record.h"
#include "data/ingest/row_texts.h"
#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {

BlockTexts::BlockTexts(bool replace_invalid_utf8, bool any_bytes)
    : replace_invalid_utf8_(replace_invalid_utf8), any_bytes_(any_bytes), json_(replace_invalid_utf8) {}

void BlockTexts::read(const TextBlock& block, const OnText& on_text, const OnFault& on_fault) {
  switch (block.kind) {
    case InputKind::text:
      return check(block, block.text(), block.first_line, on_text, on_fault);
    case InputKind::jsonl:
      return read_jsonl(block, on_text, on_fault);
    case InputKind::csv:
      return read_csv(block, on_text, on_fault);
    case InputKind::rows:
      return read_rows(block, on_text, on_fault);
    case InputKind::json:
      return read_json(block, on_text, on_fault);
  }
}

// Returns the block's text, or a copy in `replaced` if invalid UTF-8 must be replaced. block_padding more bytes may be
// read.
std::string_view BlockTexts::json_of(const TextBlock& block, std::string& replaced) const {
  const std::string_view text = block.text();
  if (!replace_invalid_utf8_ || find_invalid_utf8(text) == text.size()) return text;
  replaced = replace_invalid_utf8(text);
  const size_t size = replaced.size();
  replaced.append(block_padding, '\0');
  return std::string_view(replaced).substr(0, size);
}

void BlockTexts::read_json(const TextBlock& block, const OnText& on_text, const OnFault& on_fault) {
  std::string replaced;
  const std::string_view json = json_of(block, replaced);
  int64_t number = 0;
  try {
    json_.texts_of(json, block.field, [&](std::string_view text, const std::string& reason) {
      ++number;
      if (reason.empty()) return on_text(text, block.first_line);
      on_fault(block.first_line, fmt::format("document {}: {}", number, reason), true);
    });
  } catch (const JsonFault& fault) {
    const auto lines_before = std::count(json.begin(), json.begin() + static_cast<std::ptrdiff_t>(fault.at), '\n');
    on_fault(block.first_line + lines_before, json_record_fault(json, fault), false);
  } catch (const HiddenDocuments& fault) {
    on_fault(block.first_line, fault.what(), false);
  }
}

void BlockTexts::read_jsonl(const TextBlock& block, const OnText& on_text, const OnFault& on_fault) {
  std::string replaced;
  std::string_view rest = json_of(block, replaced);
  bool has_texts = false;
  struct Hidden {
    int64_t number;
    std::string reason;
    bool is_counted;  // on_fault was called for each value of the line
  };
  std::vector<Hidden> hidden;
  for (int64_t number = block.first_line; !rest.empty(); ++number) {
    const size_t newline = rest.find('\n');
    std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(newline == std::string_view::npos ? rest.size() : newline + 1);
    // Files joined end to end keep their byte order marks, which then begin lines in the middle.
    if (line.starts_with(byte_order_mark)) line.remove_prefix(byte_order_mark.size());
    if (line.starts_with('\x1E')) line.remove_prefix(1);
    if (line.find_first_not_of(json_separators) == std::string_view::npos) continue;
    bool is_counted = false;
    try {
      json_.texts_of_line(line, block.field, [&](std::string_view text, const std::string& reason) {
        is_counted = true;
        if (!reason.empty()) return on_fault(number, reason, true);
        has_texts = true;
        on_text(text, number);
      });
    } catch (const HiddenDocuments& fault) {
      hidden.push_back({number, fault.what(), is_counted});
    }
  }
  // Beside records with texts a line is one bad record. Without any, the documents of the block are in another place.
  for (const Hidden& line : hidden) {
    if (!has_texts || !line.is_counted) on_fault(line.number, line.reason, has_texts);
  }
}

void BlockTexts::read_csv(const TextBlock& block, const OnText& on_text, const OnFault& on_fault) {
  std::vector<std::string> fields;
  std::string_view rest = block.text();
  for (int64_t line = block.first_line; !rest.empty();) {
    const size_t length = parse_csv_record(rest, true, fields, block.csv_delimiter);
    const bool is_blank = fields.size() == 1 && fields[0].empty();
    if (fields.size() == block.csv_columns) {
      check(block, fields[block.csv_column], line, on_text, on_fault);
    } else if (!is_blank) {
      on_fault(
          line,
          fmt::format("{} where the header has {}", format_counted(std::ssize(fields), "field"), block.csv_columns),
          true);
    }
    line += count_lines(rest.substr(0, length));
    rest.remove_prefix(length);
  }
}

void BlockTexts::read_rows(const TextBlock& block, const OnText& on_text, const OnFault& on_fault) {
  std::string_view rest = block.text();
  for (int64_t row = block.first_line; !rest.empty(); ++row) {
    uint32_t length = 0;
    std::memcpy(&length, rest.data(), sizeof length);
    rest.remove_prefix(sizeof length);
    if (length == null_row_text) {
      on_fault(row, "no text: null", true);
      continue;
    }
    check(block, rest.substr(0, length), row, on_text, on_fault);
    rest.remove_prefix(length);
  }
}

void BlockTexts::check(const TextBlock& block, std::string_view text, int64_t line, const OnText& on_text,
                       const OnFault& on_fault) {
  const bool is_row = block.kind == InputKind::rows;
  const bool may_be_any = any_bytes_ && block.kind == InputKind::text && block.kind_was_asked;
  if (may_be_any && !replace_invalid_utf8_) return on_text(text, line);
  const size_t invalid = find_invalid_utf8(text);
  if (invalid < text.size() && replace_invalid_utf8_) return on_text(replace_invalid_utf8(text), line);
  const size_t zero = is_row || replace_invalid_utf8_ ? text.size() : std::min(text.find('\0'), text.size());
  const size_t fault = std::min(invalid, zero);
  if (fault == text.size()) return on_text(text, line);
  const auto lines_before = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(fault), '\n');
  const std::string_view in_its_place = any_bytes_ && block.kind == InputKind::text
                                            ? "--format text takes any bytes"
                                            : "--replace-invalid puts U+FFFD in its place";
  on_fault(is_row ? line : line + lines_before,
           fault == zero
               ? std::string("a zero byte: this is no text")
               : fmt::format("not UTF-8: byte 0x{:02x} ({})", static_cast<uint8_t>(text[fault]), in_its_place),
           block.kind != InputKind::text);
}

}  // namespace gptrain::data
