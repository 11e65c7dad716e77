// The table with which a model of SentencePiece normalizes texts: a trie that its library follows without bounds.
#pragma once

#include <string>
#include <string_view>

namespace gptrain {

// Why the tables of a model's bytes cannot be followed; empty where they can, and where there is none.
std::string find_charsmap_fault(std::string_view model);

}  // namespace gptrain
