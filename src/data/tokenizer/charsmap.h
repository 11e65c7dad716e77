// Checks the table with which a SentencePiece model normalizes texts: its library follows this trie without bounds
// checks.
#pragma once

#include <string>
#include <string_view>

namespace gptrain::inline data {

// Returns why a model's normalization tables are unusable; empty if they are sound, and if the model has none.
std::string find_charsmap_fault(std::string_view model);

}  // namespace gptrain::data
