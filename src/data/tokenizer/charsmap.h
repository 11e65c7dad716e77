// Checks the table with which a SentencePiece model normalizes texts: its library follows this trie without bounds
// checks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gptrain::inline data {

// Returns why a model's normalization tables are unusable; empty if they are sound, and if the model has none.
std::string find_charsmap_fault(std::string_view model);

// Returns the model with piece `id` changed to the type UNUSED, so that no text becomes this piece. REQUIRES: the model
// has the piece.
std::string with_unused_piece(std::string_view model, int32_t id);

}  // namespace gptrain::data
