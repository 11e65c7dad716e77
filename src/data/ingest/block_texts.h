// Extracts the documents of a block.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/ingest/blocks.h"
#include "data/ingest/json_texts.h"

namespace gptrain::inline data {

// One thread at a time.
class BlockTexts {
 public:
  using OnText = std::function<void(std::string_view text, int64_t line)>;
  // `is_one_document`: true if exactly one document is lost; false if the number is unknown.
  using OnFault = std::function<void(int64_t line, const std::string& reason, bool is_one_document)>;

  // `replace_invalid_utf8`: replaces invalid UTF-8 with U+FFFD and keeps zero bytes. Otherwise a document with invalid
  // UTF-8 is a fault; so is one with a zero byte, unless it is a row of a table. `any_bytes`: an input may contain any
  // bytes if the user named its format, text.
  explicit BlockTexts(bool replace_invalid_utf8, bool any_bytes = false);

  // Calls `on_text` for each document or part of a text, `on_fault` for each document that cannot be read, in order.
  void read(const TextBlock& block, const OnText& on_text, const OnFault& on_fault);

 private:
  void read_jsonl(const TextBlock& block, const OnText& on_text, const OnFault& on_fault);
  void read_csv(const TextBlock& block, const OnText& on_text, const OnFault& on_fault);
  void read_rows(const TextBlock& block, const OnText& on_text, const OnFault& on_fault);
  std::string_view json_of(const TextBlock& block, std::string& replaced) const;
  void read_json(const TextBlock& block, const OnText& on_text, const OnFault& on_fault);
  void check(const TextBlock& block, std::string_view text, int64_t line, const OnText& on_text,
             const OnFault& on_fault);

  bool replace_invalid_utf8_;
  bool any_bytes_;
  JsonTexts json_;
};

}  // namespace gptrain::data
