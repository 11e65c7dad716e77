// The folder of a model as transformers writes it: which of its files is the tokenizer, and the tokens that others add.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "data/tokenizer/tokenizer.h"

namespace gptrain {

// The tokenizer of tokenizer.json; of vocab.json and merges.txt; of tokenizer.model where there is none of these, or
// tokenizer.json asks for something that is not done here. Tokens of added_tokens.json, special_tokens_map.json and
// tokenizer_config.json (added_tokens_decoder) belong to it. Throws Error(usage), naming the file, as load_tokenizer()
// does, and for tokens that contradict each other.
// `load_model` loads tokenizer.model.
using LoadModel = std::function<std::shared_ptr<const Tokenizer>(const std::filesystem::path&)>;
std::shared_ptr<const Tokenizer> load_tokenizer_folder(const std::filesystem::path& folder,
                                                       const LoadModel& load_model);

}  // namespace gptrain
