// The tokens that the rows of a matrix stand for.
#pragma once

#include <cstdint>

namespace gptrain::inline base {

// A rank's number among the ranks that share sequences. Each has an equal part of a sequence's tokens: without has_pair
// one run, in rank order; with it, two of 2 * size equal runs, the ones numbered rank and 2 * size - 1 - rank.
struct ContextRank {
  int64_t size = 1;
  int64_t rank = 0;
  bool has_pair = false;
};

// Rows of sequences that lie one after the other, `length` rows of each. The rows of a sequence are one run of
// consecutive tokens, or two runs where ranks share a sequence (a rank then holds an early and a late run, as causal
// attention has equal work for such pairs). REQUIRES: the runs do not overlap. Inlined, so that kernels may call it.
struct TokenRows {
  int64_t length = 0;        // rows of a sequence
  int64_t first_length = 0;  // rows of the first run; `length`: there is no second
  int64_t first = 0;         // first token of the first run
  int64_t second = 0;        // first token of the second run

  // Returns the rows of whole sequences: row n is token n % length of sequence n / length.
  [[gnu::always_inline]] static constexpr TokenRows whole(int64_t length) {
    return {.length = length, .first_length = length};
  }
  // Returns a rank's rows of sequences of `length` tokens. REQUIRES: axis.size divides length, or twice axis.size if
  // ranks have pairs.
  [[gnu::always_inline]] static constexpr TokenRows part(int64_t length, ContextRank axis) {
    const int64_t own = length / axis.size;
    if (axis.has_pair && axis.size > 1) {
      const int64_t run = own / 2;
      return {.length = own,
              .first_length = run,
              .first = axis.rank * run,
              .second = (2 * axis.size - 1 - axis.rank) * run};
    }
    return {.length = own, .first_length = own, .first = axis.rank * own};
  }

  [[gnu::always_inline]] constexpr int64_t sequence(int64_t row) const { return row / length; }
  [[gnu::always_inline]] constexpr int64_t token(int64_t row) const {
    const int64_t in_sequence = row % length;
    return in_sequence < first_length ? first + in_sequence : second + in_sequence - first_length;
  }
  // Returns the row of a token in the first sequence, or -1 if no row is that token.
  [[gnu::always_inline]] constexpr int64_t row(int64_t token) const {
    if (token >= first && token < first + first_length) return token - first;
    const bool in_second = token >= second && token < second + length - first_length;
    return in_second ? token - second + first_length : -1;
  }
  // Returns the number of a sequence's tokens up to the last one that has a row.
  [[gnu::always_inline]] constexpr int64_t end() const {
    const int64_t end_of_first = first + first_length, end_of_second = second + length - first_length;
    return length > first_length && end_of_second > end_of_first ? end_of_second : end_of_first;
  }
  // Whether `rows` rows are whole sequences.
  [[gnu::always_inline]] constexpr bool divides(int64_t rows) const { return length > 0 && rows % length == 0; }
  // Whether the runs are runs of tokens within a sequence that do not overlap.
  constexpr bool is_sound() const {
    if (length <= 0 || first_length <= 0 || first_length > length || first < 0 || second < 0) return false;
    return first_length == length || second >= first + first_length || second + length - first_length <= first;
  }
};

}  // namespace gptrain::base
