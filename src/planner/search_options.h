// Options of a search for layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_array.h"
#include "base/lines.h"

namespace gptrain::inline planner {

enum class Objective : uint8_t {
  time,    // shortest step
  memory,  // smallest peak memory of the largest rank; of equal peaks the shortest step
  cost,    // fewest device-hours, failures included, on `gpus` devices or that number halved as often as it is even
};
constexpr EnumArray<Objective, std::string_view, 3> objective_names = {"time", "memory", "cost"};

struct SearchOptions {
  int64_t gpus = 1;
  Objective objective = Objective::time;
  double price = 0;  // per device-hour; 0: not known
  int64_t top = 10;  // number of layouts in the result
  // Settings that the search must not change ("parallel.tensor=8"). REQUIRES: the config has these values.
  std::vector<std::string> held = {};
  Lines refused = {};  // error message if no layout has the held values; empty: a general one
  // Called as the search goes on with its present work, the layouts done, and the most there can be. Null: never.
  std::function<void(std::string_view, int64_t, int64_t)> progress = nullptr;
};

}  // namespace gptrain::planner
