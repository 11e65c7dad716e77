// Identifies the tokenizer that made ids; stored in PREFIX.meta.json and in checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/tokenizer/tokenizer.h"

namespace gptrain::inline data {

// Tokenizers are equal if their hashes are, whatever files they came from: the hash is of the text that gptrain writes
// for a tokenizer.
struct TokenizerRecord {
  std::string sha256;  // hash of "bytes", or of tokenizer_text()
  int64_t vocab_size = 0;
  std::optional<int32_t> end_token;  // last token of each document; nullopt: documents have none
  std::string text;                  // the hashed text; empty: stored elsewhere, or lost

  bool is_bytes() const { return text == "bytes"; }
};

TokenizerRecord make_tokenizer_record(const Tokenizer& tokenizer, std::optional<int32_t> end_token);

// Returns true if both tokenizers give the same ids: their hashes are equal, or their texts differ only in that one has
// its added tokens in model.vocab too, as exports write them. Throws as tokenizer_of() does.
bool is_same_tokenizer(const TokenizerRecord& a, const TokenizerRecord& b);

// Returns the tokenizer of a record that has its text. Throws as parse_tokenizer_json() does.
std::shared_ptr<const Tokenizer> tokenizer_of(const TokenizerRecord& record, const std::string& source);

// Convert to and from {"sha256", "vocab_size", "end_token", "text"}, the last two if present. The parser throws
// nlohmann::json::exception for anything else, and for a text that does not match the hash.
nlohmann::ordered_json tokenizer_record_json(const TokenizerRecord& record);
TokenizerRecord parse_tokenizer_record(const nlohmann::json& object);

}  // namespace gptrain::data
