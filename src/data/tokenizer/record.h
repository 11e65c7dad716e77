// What says which tokenizer made ids: kept in PREFIX.meta.json and in checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/tokenizer/tokenizer.h"

namespace gptrain {

// Two tokenizers are one where their hashes are equal, whatever files they came from: the hash is of the text that
// gptrain writes of a tokenizer.
struct TokenizerRecord {
  std::string sha256;  // of "bytes", or of tokenizer_text()
  int64_t vocab_size = 0;
  std::optional<int32_t> end_token;  // the last token of each document, where documents were given one
  std::string text;                  // what the hash is of; empty: it is kept elsewhere, or lost

  bool is_bytes() const { return text == "bytes"; }
};

TokenizerRecord make_tokenizer_record(const Tokenizer& tokenizer, std::optional<int32_t> end_token);

// The tokenizer of a record with its text. Throws as parse_tokenizer_json() does.
std::shared_ptr<const Tokenizer> tokenizer_of(const TokenizerRecord& record, const std::string& source);

// {"sha256", "vocab_size", "end_token", "text"}; the last two where there are any. The reader throws
// nlohmann::json::exception for what is none of these, and for a text that does not have the hash.
nlohmann::ordered_json tokenizer_record_json(const TokenizerRecord& record);
TokenizerRecord parse_tokenizer_record(const nlohmann::json& object);

}  // namespace gptrain
