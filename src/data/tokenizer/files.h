// Tokenizers in files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"

namespace gptrain {

// The tokenizer of a name: "bytes"; a tokenizer.json; a tiktoken rank file (lines "BASE64 RANK"); a folder with a
// tokenizer.json, or with GPT-2's vocab.json and merges.txt; a .model of SentencePiece. A rank file says neither its pattern nor its special
// tokens: both are known for the published ones, which are told by how many ranks they have (r50k, p50k, cl100k, o200k,
// Llama 3, Qwen); others need `pattern`, a name of pattern_of_name() or a regular expression, and have no special
// tokens. Throws Error(usage), naming the file and, of a tokenizer.json, the member, for what is not there, is damaged,
// or asks for something that gptrain does not do exactly as the file's own library.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name, const std::string& pattern = {});

// The same from the text of a tokenizer.json, or from tokenizer_text(). `source` is for messages.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(std::string_view text, const std::string& source);

// A tokenizer.json that Hugging Face tokenizers reads, and parse_tokenizer_json() gives back.
std::string tokenizer_json(const TokenizerParts& parts);
// The same of a tokenizer that is not "bytes"; a model of SentencePiece as {"sentencepiece": BASE64}, which nobody else
// reads.
std::string tokenizer_text(const Tokenizer& tokenizer);

// The characters of GPT-2's byte-level alphabet, in which vocabularies are written, and back. to_bytes() gives false
// where `text` has a character outside of the alphabet.
std::string to_byte_level(std::string_view bytes);
bool from_byte_level(std::string_view text, std::string& bytes);

}  // namespace gptrain
