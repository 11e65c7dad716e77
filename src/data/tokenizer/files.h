// Reads and writes tokenizers as files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"

namespace gptrain::inline data {

// Loads a tokenizer by name: "bytes"; a tokenizer.json; a tiktoken rank file (lines "BASE64 RANK"); a folder with a
// tokenizer.json, or with GPT-2's vocab.json and merges.txt; a .model of SentencePiece. A rank file does not have its
// pattern and special tokens. For published ones (r50k, p50k, cl100k, o200k, Llama 3, Qwen) both are known, identified
// by the number of ranks; others need `pattern`, a name of pattern_of_name() or a regular expression, and have no
// special tokens. Throws Error(usage), with the file and, in a tokenizer.json, the member, for anything missing or
// damaged, or that gptrain cannot do exactly as the file's own library.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name, const std::string& pattern = {});

// Returns tokenizer_json() for any tokenizer except "bytes"; a SentencePiece model as {"sentencepiece": BASE64}, which
// only gptrain reads.
std::string tokenizer_text(const Tokenizer& tokenizer);

}  // namespace gptrain::data
