// tokenizer.json and its alphabet.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace gptrain::inline data {

// Ids that added tokens may have: any, or only those that Hugging Face tokenizers gives them when it reads the file. A
// file that tokenizer_json() wrote may have any.
enum class AddedIds { any, of_tokenizers };

// Parses the text of a tokenizer.json, or of tokenizer_text(). `source`: for messages.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& source,
                                                      AddedIds added_ids = AddedIds::any);

// Returns a tokenizer.json that Hugging Face tokenizers can read, and parse_tokenizer_json() reads back.
std::string tokenizer_json(const TokenizerParts& parts);

// Returns a tokenizer.json in which Hugging Face tokenizers finds every added token under its id. Tokenizers gives the
// next free id to those that are not in model.vocab. REQUIRES: parse_tokenizer_json() reads `text`.
std::string with_added_ids(const std::string& text);

// Convert to and from the characters of GPT-2's byte-level alphabet, in which vocabularies are written.
// from_byte_level() returns false if `text` has other characters.
std::string to_byte_level(std::string_view bytes);
bool from_byte_level(std::string_view text, std::string& bytes);

}  // namespace gptrain::data
