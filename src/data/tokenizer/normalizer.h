// Normalizes a text before it is split into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gptrain::inline data {

struct NormalizerStep {
  enum class Kind : uint8_t { nfc, nfkc, replace, prepend };
  Kind kind = Kind::nfc;
  std::string from;  // replace: text to replace
  std::string to;    // replace: its replacement; prepend: put before every text that is not empty
};

// Applies all steps in order. Returns false if `text` is unchanged; then `normalized` is undefined.
bool normalize(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& normalized);

}  // namespace gptrain::data
