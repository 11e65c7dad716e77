#include "base/offload_choice.h"

#include <algorithm>

namespace gptrain::inline base {

std::string offload_name(OffloadChoice choice) {
  for (size_t word = 0; word < offload_words.size(); ++word)
    if (choice == OffloadChoice::of_word(word)) return std::string(offload_words[word]);
  return std::to_string(choice.blocks());
}

std::optional<OffloadChoice> parse_offload(std::string_view word) {
  const auto found = std::find(offload_words.begin(), offload_words.end(), word);
  if (found == offload_words.end()) return std::nullopt;
  return OffloadChoice::of_word(static_cast<size_t>(found - offload_words.begin()));
}

}  // namespace gptrain::base
