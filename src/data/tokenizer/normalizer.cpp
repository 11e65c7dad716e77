#include "data/tokenizer/normalizer.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"

namespace gptrain::inline data {
namespace {

std::string replaced(std::string_view text, const std::string& from, const std::string& to) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    result += text.substr(at, found - at);
    if (found < text.size()) result += to;
    at = found + (found < text.size() ? from.size() : 0);
  }
  return result;
}

}  // namespace

bool normalize(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& normalized) {
  bool changed = false;
  std::string other;
  for (const NormalizerStep& step : steps) {
    const std::string_view now = changed ? std::string_view(normalized) : text;
    bool step_changed = false;
    switch (step.kind) {
      case NormalizerStep::Kind::nfc:
        step_changed = normalize_nfc(now, other);
        break;
      case NormalizerStep::Kind::nfkc:
        step_changed = normalize_nfkc(now, other);
        break;
      case NormalizerStep::Kind::replace:
        step_changed = now.find(step.from) != std::string_view::npos;
        if (step_changed) other = replaced(now, step.from, step.to);
        break;
      case NormalizerStep::Kind::prepend:
        step_changed = !now.empty();
        if (step_changed) other = step.to + std::string(now);
        break;
    }
    if (!step_changed) continue;
    normalized.swap(other);
    changed = true;
  }
  return changed;
}

}  // namespace gptrain::data
