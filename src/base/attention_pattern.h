// Attention patterns: the keys that a query sees in one kind of layer, by position in the sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/int128.h"

namespace gptrain::inline base {

enum class AttentionKind : uint8_t { dense, band, strided, columns, fixed };

// A causal pattern. A query sees keys at or before its own position:
//   dense      all
//   band       the last `width`, its own included
//   strided    those of `band`, and every one at a multiple of `width` before its own (arXiv 1904.10509)
//   columns    its own, and every one at a multiple of `width` before it
//   fixed      those of its own block of `width`, and `columns` of each earlier block. Heads take turns: head h has set
//              h % column_sets, and set 0 is the last `columns` of a block, set 1 the `columns` before these.
// and in every pattern the first `global` of the sequence. A document mask further hides other documents: it does not
// move the pattern, which counts positions in the sequence.
struct AttentionPattern {
  AttentionKind kind = AttentionKind::dense;
  int64_t width = 0;        // 0 if dense, else at least 1
  int64_t columns = 0;      // fixed only: at least 1
  int64_t column_sets = 1;  // fixed only, else 1; columns * column_sets is at most `width`
  int64_t global = 0;

  bool operator==(const AttentionPattern&) const = default;

  // RETURNS whether a query sees one run of keys: those of a window of `width` tokens, or all before it if that is 0.
  constexpr bool one_run() const {
    return kind == AttentionKind::dense || (kind == AttentionKind::band && global == 0);
  }
  // RETURNS whether the sizes are those that the kind has, in their bounds.
  constexpr bool sound() const {
    constexpr int64_t largest = 1 << 24;
    if (global < 0 || global > largest || width > largest) return false;
    if (kind != AttentionKind::fixed && (columns != 0 || column_sets != 1)) return false;
    if (kind == AttentionKind::dense) return width == 0;
    if (kind != AttentionKind::fixed) return width > 0;
    return columns > 0 && column_sets > 0 && columns <= largest && column_sets <= largest &&
           columns * column_sets <= width;
  }

  // RETURNS whether `query` of `head` sees `key`: the definition that all other code is tested against.
  constexpr bool sees(int64_t head, int64_t query, int64_t key) const {
    if (key > query) return false;
    if (key < global || kind == AttentionKind::dense) return true;
    const int64_t distance = query - key;
    if (kind == AttentionKind::band) return distance < width;
    if (kind == AttentionKind::strided) return distance < width || distance % width == 0;
    if (kind == AttentionKind::columns) return distance % width == 0;
    const int64_t before_end = width - 1 - key % width;  // tokens from the key to the end of its block
    return key / width == query / width || before_end / columns == head % column_sets;
  }

  // RETURNS the (query, key) pairs of a sequence, summed over `heads` heads. Exact, in a time that depends on
  // column_sets only. REQUIRES: column_sets divides heads.
  int64_t pairs(int64_t tokens, int64_t heads) const;

  // RETURNS twice the pairs that model FLOPs count: by the field's custom tokens^2 for each head that sees all earlier
  // tokens, else twice the exact number. REQUIRES: column_sets divides heads.
  Flops twice_counted_pairs(int64_t tokens, int64_t heads) const;
};

// RETURNS the pattern of a window: a band of that width, or dense if the window is 0.
constexpr AttentionPattern window_pattern(int64_t window) {
  return {.kind = window > 0 ? AttentionKind::band : AttentionKind::dense, .width = window};
}

// Words of patterns in configs.
constexpr std::string_view attention_pattern_words =
    "dense, band:W, strided:L, columns:L, fixed:L,C or fixed:L,C/V, each with or without +global:G";

// Matches the words of patterns. Does not check that C * V is at most L in fixed:L,C/V.
constexpr const char* attention_pattern_regex =
    "^(dense|(band|strided|columns):[1-9][0-9]*|fixed:[1-9][0-9]*,[1-9][0-9]*(/[1-9][0-9]*)?)"
    "(\\+global:[1-9][0-9]*)?$";

// RETURNS the pattern of a word, or nothing if it is none: sizes are 1 to 2^24, and C * V at most L.
std::optional<AttentionPattern> parse_attention_pattern(std::string_view word);

// RETURNS the word of a pattern.
std::string attention_pattern_word(const AttentionPattern& pattern);

}  // namespace gptrain::base
