// What a tokenizer does to a text before it parts it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain {

struct NormalizerStep {
  enum class Kind : uint8_t { nfc, nfkc, replace, prepend };
  Kind kind = Kind::nfc;
  std::string from;  // of replace: what is replaced
  std::string to;    // of replace, and of prepend what is put before a text that is not empty
};

// All steps in order. False where they leave `text` as it is: then `normalized` need not hold it.
bool normalize(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& normalized);

}  // namespace gptrain
