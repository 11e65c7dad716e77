// Learns the merges of byte-pair encoding, as Hugging Face's BpeTrainer does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace gptrain::inline data {

using PieceCounts = std::unordered_map<std::string, int64_t>;

// Returns tokens and merges learned from pieces and their counts. Ids: first the special tokens, then the 256 bytes in
// the order of their characters in GPT-2's alphabet, then one per merge. The most frequent pair of neighbours is merged
// next; among equally frequent ones the pair with the smaller ids, left id first. Ends early, with fewer tokens, if no
// pair is left. Memory is bounded by the pieces. `progress(done, total)` counts tokens. Throws Error(usage) if
// vocab_size has no room for the bytes and the special tokens.
TokenizerParts train_bpe(const PieceCounts& pieces, int64_t vocab_size, const std::vector<std::string>& special,
                         const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gptrain::data
