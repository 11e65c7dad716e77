// The layouts among which a search chooses: those that fit by their lower bounds, and the memory that the others lack.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "ops/target.h"
#include "planner/layout_estimate.h"
#include "planner/layout_search.h"
#include "planner/layouts.h"
#include "planner/nearest_layout.h"
#include "planner/search_options.h"

namespace gptrain::inline planner {

constexpr size_t num_classes = 12;
// A layout's values of the keys of layout_keys, in their order, as numbers. All layouts with the same value of a key
// form a class.
using ClassValues = std::array<int64_t, num_classes>;
ClassValues class_values(const RunLayout& layout);

// Accuracy of a layout's memory: lower bound, plan of one rank, plans of all kinds of ranks.
enum class BytesKnown : uint8_t { bound, of_a_rank, exact };

struct Candidate {
  RunLayout layout;
  LeastBytes least;
  int64_t bytes = 0;  // device memory of the largest rank, as accurate as bytes_known says
  BytesKnown bytes_known = BytesKnown::bound;
  double least_score = 0, least_seconds = 0;
  std::optional<LayoutResult> estimate = {};
  double score = 0;  // score of the estimate
};

// The layouts that miss the least memory, among all and in each class.
class Misses {
 public:
  // Adds a layout that lacks `missing` bytes of device memory.
  void add(const RunLayout& layout, int64_t missing);
  // Adds a layout that the search does not try, and that counts for no class.
  void add_untried(const RunLayout& layout, int64_t missing) { least_.add(missing, layout); }
  const Miss& least() const { return least_; }
  // Returns the smallest miss of each class: all layouts with one value of one key. Indexed by key and value.
  const std::map<std::pair<size_t, int64_t>, Miss>& of_classes() const { return of_classes_; }

 private:
  Miss least_;
  std::map<std::pair<size_t, int64_t>, Miss> of_classes_;
};

// The settings that a search must not change.
class HeldKeys {
 public:
  // `own`: the config's layout.
  HeldKeys(const SearchOptions& options, const RunLayout& own);

  const RunLayout& own() const { return own_; }
  bool has(std::string_view key) const;
  // Returns true if the layout has the values of all held keys.
  bool agree_with(const RunLayout& layout) const;

 private:
  const std::vector<std::string>& settings_;
  RunLayout own_;
  std::vector<LayoutValue> values_;
};

// Scores of layouts by the objective of a search; the best has the lowest.
class LayoutScores {
 public:
  LayoutScores(const RunConfig& config, const Machine& machine, Objective objective);

  // Returns the score of a layout from the seconds of its step and the device memory of a rank, estimated or bounds.
  double of(const RunLayout& layout, double seconds, int64_t bytes);
  // Returns the score of a planned layout, whose own goodput is known.
  double exact(const LayoutResult& result);

 private:
  double goodput(int64_t world_size) const;

  const Machine& machine_;
  Objective objective_;
  bool saves_asynchronously_;
  int64_t checkpoint_bytes_;
  std::map<int64_t, double> goodputs_;  // by number of devices
};

// Constants of a search.
struct SearchCase {
  const RunConfig& config;
  const Machine& machine;
  const SearchOptions& options;
  Target target;
  int64_t device_bytes;  // device memory for a rank
};

struct Candidates {
  std::vector<Candidate> fitting;  // layouts that fit by their bounds, most promising first
  int64_t num_layouts = 0;         // layouts that the config and the machine allow
  int64_t num_too_large = 0;
  bool uses_budget = false;                                    // whether memory.activation_budget limits a layout
  int64_t least_record = std::numeric_limits<int64_t>::max();  // smallest record_bytes that exceeds the budget
};

// Adds layouts that are too large to `misses`. THROWS Error(usage) if the config allows no layout.
Candidates collect_candidates(const SearchCase& search, const HeldKeys& held, LayoutEstimator& estimator,
                              LayoutScores& scores, Misses& misses);

}  // namespace gptrain::planner
