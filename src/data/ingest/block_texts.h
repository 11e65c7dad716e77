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
  using OnFault = std::function<void(int64_t line, const std::string& reason)>;

  // `field`: the member of JSON objects. Invalid UTF-8 becomes U+FFFD, or the document is a fault; with `any_bytes` it
  // may stay, where the format allows it.
  BlockTexts(std::string field, bool replace_invalid_utf8, bool any_bytes = false);

  // Calls `on_text` for each document, or part of a text; `on_fault` in the place of one that cannot be read.
  void read(const Block& block, const OnText& on_text, const OnFault& on_fault);

 private:
  void read_jsonl(const Block& block, const OnText& on_text, const OnFault& on_fault);
  void read_csv(const Block& block, const OnText& on_text, const OnFault& on_fault);
  void read_rows(const Block& block, const OnText& on_text, const OnFault& on_fault);
  void check(std::string_view text, int64_t line, const OnText& on_text, const OnFault& on_fault);

  bool replace_invalid_utf8_;
  bool any_bytes_;
  bool in_rows_ = false;  // lines are numbers of rows
  JsonTexts json_;
};

}  // namespace gptrain
