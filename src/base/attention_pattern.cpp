#include "base/attention_pattern.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

#include "base/enum_array.h"

namespace gptrain::inline base {
namespace {

constexpr EnumArray<AttentionKind, std::string_view, 5> names = {"dense", "band", "strided", "columns", "fixed"};

// RETURNS the sum of 1 to n.
int64_t triangle(int64_t n) { return n * (n + 1) / 2; }

// RETURNS the pairs of `tokens` queries that each see the last `width` keys.
int64_t band_pairs(int64_t width, int64_t tokens) {
  const int64_t ramp = std::min(width, tokens);
  return triangle(ramp) + (tokens - ramp) * width;
}

// RETURNS the pairs at distances that are multiples of `width`, 0 included.
int64_t column_pairs(int64_t width, int64_t tokens) {
  const int64_t blocks = tokens / width;
  return width * triangle(blocks) + tokens % width * (blocks + 1);
}

// RETURNS the pairs of a fixed pattern whose sequence begins with a block.
int64_t fixed_pairs(const AttentionPattern& pattern, int64_t tokens) {
  const int64_t width = pattern.width, blocks = tokens / width, rest = tokens % width;
  return blocks * triangle(width) + triangle(rest) + pattern.columns * (width * triangle(blocks - 1) + rest * blocks);
}

// RETURNS the pairs of a fixed pattern with keys from `first` on.
int64_t fixed_pairs_from(const AttentionPattern& pattern, int64_t first, int64_t set, int64_t tokens) {
  const int64_t width = pattern.width, offset = first % width;
  if (offset == 0) return fixed_pairs(pattern, tokens - first);
  const int64_t end = std::min(first - offset + width, tokens);  // end of the block of `first`
  const int64_t end_columns = width - pattern.columns * set;
  const int64_t columns = end_columns - std::max(end_columns - pattern.columns, offset);
  return triangle(end - first) + std::max<int64_t>(columns, 0) * (tokens - end) + fixed_pairs(pattern, tokens - end);
}

// RETURNS the pairs of one head with keys from `first` on. All kinds but fixed look the same from every position.
int64_t pairs_from(const AttentionPattern& pattern, int64_t first, int64_t set, int64_t tokens) {
  const int64_t left = tokens - first;
  switch (pattern.kind) {
    case AttentionKind::dense:
      return triangle(left);
    case AttentionKind::band:
      return band_pairs(pattern.width, left);
    case AttentionKind::strided:
      return band_pairs(pattern.width, left) + column_pairs(pattern.width, left) - left;
    case AttentionKind::columns:
      return column_pairs(pattern.width, left);
    case AttentionKind::fixed:
      return fixed_pairs_from(pattern, first, set, tokens);
  }
  return 0;
}

// RETURNS the pairs of a head with a set of columns.
int64_t pairs_of_set(const AttentionPattern& pattern, int64_t set, int64_t tokens) {
  const int64_t first = std::min(pattern.global, tokens);
  return (first > 0 ? band_pairs(first, tokens) : 0) + pairs_from(pattern, first, set, tokens);
}

// Cuts a number, at least 1, off the front of a text. RETURNS 0 if there is none.
int64_t take_size(std::string_view& text) {
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc{} || text.starts_with('-') || text.starts_with('0')) return 0;
  text.remove_prefix(end - text.data());
  return size;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

int64_t AttentionPattern::pairs(int64_t tokens, int64_t heads) const {
  int64_t of_sets = 0;
  for (int64_t set = 0; set < column_sets; ++set) of_sets += pairs_of_set(*this, set, tokens);
  return heads / column_sets * of_sets;
}

Flops AttentionPattern::twice_counted_pairs(int64_t tokens, int64_t heads) const {
  Flops of_sets = 0;
  for (int64_t set = 0; set < column_sets; ++set) {
    const int64_t seen = pairs_of_set(*this, set, tokens);
    of_sets += seen == triangle(tokens) ? wide(tokens) * wide(tokens) : 2 * wide(seen);
  }
  return wide(heads / column_sets) * of_sets;
}

std::optional<AttentionPattern> parse_attention_pattern(std::string_view word) {
  AttentionPattern pattern;
  const auto* const name =
      std::find_if(names.begin(), names.end(), [&](std::string_view candidate) { return take(word, candidate); });
  if (name == names.end()) return std::nullopt;
  pattern.kind = static_cast<AttentionKind>(name - names.begin());
  if (pattern.kind != AttentionKind::dense && (!take(word, ":") || (pattern.width = take_size(word)) == 0))
    return std::nullopt;
  if (pattern.kind == AttentionKind::fixed) {
    if (!take(word, ",") || (pattern.columns = take_size(word)) == 0) return std::nullopt;
    if (take(word, "/") && (pattern.column_sets = take_size(word)) == 0) return std::nullopt;
  }
  if (take(word, "+global:") && (pattern.global = take_size(word)) == 0) return std::nullopt;
  if (!word.empty() || !pattern.sound()) return std::nullopt;
  return pattern;
}

std::string attention_pattern_word(const AttentionPattern& pattern) {
  std::string word(names[pattern.kind]);
  if (pattern.kind != AttentionKind::dense) word += fmt::format(":{}", pattern.width);
  if (pattern.kind == AttentionKind::fixed) word += fmt::format(",{}", pattern.columns);
  if (pattern.column_sets > 1) word += fmt::format("/{}", pattern.column_sets);
  if (pattern.global > 0) word += fmt::format("+global:{}", pattern.global);
  return word;
}

}  // namespace gptrain::base
