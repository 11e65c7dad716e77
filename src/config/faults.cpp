#include "config/faults.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <optional>

#include "base/printable.h"
#include "base/units.h"

namespace gptrain::inline config {

void Faults::add(const std::string& path, const std::string& value, const std::string& rule,
                 const std::string& nearest) {
  paths_.insert(path);
  if (is_full()) {
    ++num_more_;
    return;
  }
  std::string line = printable(path);
  if (!value.empty()) line += " = " + value;
  line += ": " + rule;
  if (!nearest.empty()) line += " (try " + nearest + ")";
  lines_.push_back(std::move(line));
}

bool Faults::concern(const std::string& path) const {
  for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
    if (paths_.contains(path.substr(0, dot))) return true;
  }
  const auto concerns_part = [&](const std::string& part) {
    const auto next = paths_.lower_bound(part);
    return next != paths_.end() && next->starts_with(part);
  };
  return paths_.contains(path) || concerns_part(path + "[") || concerns_part(path + ".");
}

Lines Faults::lines() const {
  Lines lines = Lines::join(lines_);
  if (num_more_ > 0) lines += Lines("\nand {} more", format_counted(num_more_, "fault"));
  return lines;
}

std::string join(std::span<const std::string> words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &words.front()) text += separator;
    text += word;
  }
  return text;
}

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

int64_t word_distance(std::string_view word, std::string_view candidate) {
  return candidate.starts_with(word) ? 0 : edit_distance(word, candidate);
}

std::string nearest_word(std::string_view word, std::span<const std::string> candidates) {
  const auto nearest = std::min_element(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    return word_distance(word, a) < word_distance(word, b);
  });
  return nearest == candidates.end() ? std::string() : *nearest;
}

std::string nearest_integers(int64_t value, int64_t min, int64_t max, const std::function<bool(int64_t)>& holds) {
  std::optional<int64_t> above;
  for (int64_t n = std::max(value + 1, min); n <= max && !above; ++n) {
    if (holds(n)) above = n;
  }
  std::optional<int64_t> below;
  for (int64_t n = std::min(value - 1, max); n >= min && !below; --n) {
    if (holds(n)) below = n;
  }
  if (above && below) return fmt::format("{} or {}", *above, *below);
  if (above || below) return fmt::format("{}", above ? *above : *below);
  return {};
}

}  // namespace gptrain::config
