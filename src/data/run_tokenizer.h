// Finds the tokenizer that made a run's tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "data/tokenizer/record.h"

namespace gptrain::inline data {

struct RunTokenizer {
  std::optional<TokenizerRecord> record;       // nullopt: neither the config nor the data name one
  std::shared_ptr<const Tokenizer> tokenizer;  // null also if only its hash is known
  std::string warning = {};                    // about rows of the vocabulary without a token; empty: none
};

// Most ids above the tokenizer's vocabulary without a warning: padding, and room for special tokens.
constexpr int64_t max_spare_ids = 1024;

// Returns the tokenizer named by data.tokenizer; if that is "auto", the one in the sources' PREFIX.meta.json, else
// `known`, a checkpoint's. Sources without a record are assumed to be like the others. Throws Error(usage) if two of
// these differ, if it cannot be read, or if model_vocab_size (model.vocab_size) is smaller than its vocabulary. Warns
// if it is larger by more than max_spare_ids.
RunTokenizer find_run_tokenizer(const DataConfig& data, int64_t model_vocab_size,
                                const std::optional<TokenizerRecord>& known = {});

}  // namespace gptrain::data
