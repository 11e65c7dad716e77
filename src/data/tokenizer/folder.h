// Loads the tokenizer from a model folder as transformers writes it, with the tokens that other files add.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "data/tokenizer/tokenizer.h"

namespace gptrain::inline data {

// Loads tokenizer.json, else vocab.json and merges.txt, else tokenizer.model or tiktoken.model (with `load_model`).
// tokenizer.model also replaces a tokenizer.json with a feature that gptrain lacks. Adds the tokens of
// tokenizer_config.json, added_tokens.json and special_tokens_map.json, and takes their flags, as transformers does: of
// several files in this order, the first that gives flags counts. Throws Error(usage), with the file, as
// load_tokenizer() does, and for files that contradict each other.
using LoadModel = std::function<std::shared_ptr<const Tokenizer>(const std::filesystem::path&)>;
std::shared_ptr<const Tokenizer> load_tokenizer_folder(const std::filesystem::path& folder,
                                                       const LoadModel& load_model);

}  // namespace gptrain::data
