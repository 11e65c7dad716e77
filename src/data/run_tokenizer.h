// Which tokenizer made the tokens that a run reads.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "data/tokenizer/record.h"

namespace gptrain {

struct RunTokenizer {
  std::optional<TokenizerRecord> record;       // nothing: neither the config nor the data say
  std::shared_ptr<const Tokenizer> tokenizer;  // null, too, where only its hash is known
  std::string warning = {};                    // of rows of the vocabulary that no token has; else empty
};

// Ids behind the tokenizer's vocabulary of which nobody is warned: padding, and room for special tokens to come.
constexpr int64_t max_spare_ids = 1024;

// The tokenizer that data.tokenizer names; where it is "auto", the one that PREFIX.meta.json of the sources names, or
// else `known`, that of a checkpoint. Error(usage): two of these differ; model.vocab_size is smaller than its
// vocabulary; it cannot be read. A warning: model.vocab_size is larger by more than max_spare_ids. Sources of which nothing is known are taken to
// be like the others.
RunTokenizer find_run_tokenizer(const RunConfig& config, const std::optional<TokenizerRecord>& known = {});

}  // namespace gptrain
