// The search for a config's best layout on so many devices: bounds cut, passes are played, the best are planned whole.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "planner/predict.h"
#include "planner/layout_search.h"

namespace gptrain {

enum class Objective : uint8_t {
  time,    // the shortest step
  memory,  // the smallest peak of the largest rank; of equal ones the shortest step
  cost,    // the fewest device-hours, failures included, on at most so many devices: they are halved as often as goes
};
constexpr std::array<std::string_view, 3> objective_names = {"time", "memory", "cost"};

struct SearchOptions {
  int64_t gpus = 1;
  Objective objective = Objective::time;
  double price = 0;  // of a device-hour
  int64_t top = 10;  // layouts that are named
  // "parallel.tensor=8": keys of layouts, each of which keeps the value that the config has, which is this.
  std::vector<std::string> held = {};
  std::string refused = {};  // what to say where no layout has the values that are held; empty: just that
};

// batch.global and everything but the keys of a RunLayout stay as they are. memory.activation_budget is that of the
// layouts whose memory.recompute is "optimal". Error(usage): the config suits no layout at all on so many devices, none of
// those that are searched has the values that are held, or the budget is too small for all that were planned.
LayoutSearch search_layouts(const RunConfig& config, const Machine& machine, const SearchOptions& options);

}  // namespace gptrain
