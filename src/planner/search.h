// The search for a config's best layout: drops layouts by lower bounds, estimates the rest, and plans the best in full.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "planner/layout_search.h"
#include "planner/predict.h"

namespace gptrain::inline planner {

enum class Objective : uint8_t {
  time,    // shortest step
  memory,  // smallest peak memory of the largest rank; of equal peaks the shortest step
  cost,    // fewest device-hours, failures included, on `gpus` devices or that number halved as often as it is even
};
constexpr std::array<std::string_view, 3> objective_names = {"time", "memory", "cost"};

struct SearchOptions {
  int64_t gpus = 1;
  Objective objective = Objective::time;
  double price = 0;  // per device-hour; 0: not known
  int64_t top = 10;  // number of layouts in the result
  // Settings that the search must not change ("parallel.tensor=8"). REQUIRES: the config has these values.
  std::vector<std::string> held = {};
  std::string refused = {};  // error message if no layout has the held values; empty: a general one
};

// Searches all values of the keys of a RunLayout; batch.global and all other keys stay. Layouts whose memory.recompute
// is "optimal" keep to memory.activation_budget. THROWS Error(usage) if no layout is possible on `gpus` devices, if
// none of those searched has the held values, or if no planned layout keeps to the budget.
LayoutSearch search_layouts(const RunConfig& config, const Machine& machine, const SearchOptions& options);

}  // namespace gptrain::planner
