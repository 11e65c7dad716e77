// The documents of a block.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/ingest/blocks.h"
#include "data/ingest/json_texts.h"

namespace gptrain {

// One thread at a time.
class BlockTexts {
 public:
  using OnText = std::function<void(std::string_view text, int64_t line)>;
  // `is_one_document` is false where it is unknown how many documents are lost.
  using OnFault = std::function<void(int64_t line, const std::string& reason, bool is_one_document)>;

  // Invalid UTF-8 becomes U+FFFD, or the document is a fault, as is one with a zero byte. With `any_bytes` both may
  // stay in rows, and in texts that were asked for as such.
  explicit BlockTexts(bool replace_invalid_utf8, bool any_bytes = false);

  // Calls `on_text` for each document, or part of a text; `on_fault` in the place of one that cannot be read.
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

}  // namespace gptrain
