// Learns the merges of byte-pair encoding, as Hugging Face's BpeTrainer does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace gptrain {

using PieceCounts = std::unordered_map<std::string, int64_t>;

// Tokens and merges for pieces with their counts: ids are first the special tokens, then the 256 bytes in the order of
// their characters in GPT-2's alphabet, then one for each merge. Of all pairs of neighbours the most frequent is merged
// next; of equally frequent ones that with the smaller ids, the left one's first. Ends early, with fewer tokens, where
// no pair is left. Memory is bounded by the pieces. `progress(done, total)` counts tokens. Throws Error(usage) if
// vocab_size has no room for the bytes and the special tokens.
TokenizerParts train_bpe(const PieceCounts& pieces, int64_t vocab_size, const std::vector<std::string>& special,
                         const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gptrain
