// Statistics of a step as a layer's pass sees them.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/matrix.h"

namespace gptrain::inline model {

class StatisticsLayout;

// A rank's block of statistics, as one pass of a layer sees it. Borrows both.
struct StepStatistics {
  const StatisticsLayout* layout = nullptr;  // null: no statistics are collected
  std::byte* block = nullptr;                // device
  bool first_pass = true;                    // false: the unit has passed over the micro-batch before

  // RETURNS a statistic's values, [1, count]; not given if this pass does not collect it.
  Matrix find(std::string_view name) const;
};

}  // namespace gptrain::model
