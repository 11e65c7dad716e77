// The faults of a config, collected so that all are reported at once.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/lines.h"

namespace gptrain::inline config {

class Faults {
 public:
  // Adds the line "path = value: rule (try nearest)". `value` comes from show_value; empty: the key is absent.
  // `nearest` names the nearest valid value or values; may be empty.
  void add(const std::string& path, const std::string& value, const std::string& rule, const std::string& nearest);

  // Returns true if the key, its section, or an element of its value has a fault; rules must then not use the value.
  bool concern(const std::string& path) const;

  bool empty() const { return lines_.empty(); }
  // Returns true once further faults are only counted, so that callers need not search for nearest values.
  bool is_full() const { return lines_.size() >= max_lines; }
  Lines lines() const;  // one line per fault, in the order of add, and how many more there are

 private:
  static constexpr size_t max_lines = 100;

  std::set<std::string> paths_;  // all paths with a fault
  std::vector<std::string> lines_;
  int64_t num_more_ = 0;
};

// Returns the words in one text, with the separator between them.
std::string join(std::span<const std::string> words, std::string_view separator);

// Returns the Levenshtein distance in bytes.
int64_t edit_distance(std::string_view a, std::string_view b);

// Returns how far a word is from the candidate that may have been meant: the edit distance, but 0 if the word is the
// beginning of the candidate.
int64_t word_distance(std::string_view word, std::string_view candidate);

// Returns the candidate at the smallest distance, the first of equals; empty if there are no candidates.
std::string nearest_word(std::string_view word, std::span<const std::string> candidates);

// Returns the nearest integers in [min, max] above and below `value` for which `holds` is true: "6 or 4", "6", or
// empty.
std::string nearest_integers(int64_t value, int64_t min, int64_t max, const std::function<bool(int64_t)>& holds);

}  // namespace gptrain::config
