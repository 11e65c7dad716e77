// Shared by the cases of experts: rows of experts with counts on the device, and poison past the last row.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "harness.h"

namespace gptrain::ops_test {

// Rows of each expert, and the bound of all rows.
struct ExpertRows {
  std::vector<int64_t> counts;
  int64_t bound;

  int64_t experts() const { return static_cast<int64_t>(counts.size()); }
  int64_t used() const { return offsets().back(); }
  std::vector<int64_t> offsets() const {
    std::vector<int64_t> starts = {0};
    for (const int64_t count : counts) starts.push_back(starts.back() + count);
    return starts;
  }
  Matrix matrix(Trial& trial) const {
    const std::vector<int64_t> starts = offsets();
    return trial
        .input(DType::i32, 1, static_cast<int64_t>(starts.size()), std::vector<double>(starts.begin(), starts.end()))
        .matrix();
  }
  // Calls body(expert, row) for each used row.
  template <typename Body>
  void each(const Body& body) const {
    const std::vector<int64_t> starts = offsets();
    for (int64_t e = 0; e < experts(); ++e)
      for (int64_t row = starts[static_cast<size_t>(e)]; row < starts[static_cast<size_t>(e + 1)]; ++row) body(e, row);
  }
};

// Returns an input of normal numbers, with NaN in all rows from `used` on.
inline const Operand& poisoned_input(Trial& trial, DType dtype, int64_t rows, int64_t cols, int64_t used, int64_t gap) {
  std::vector<double> values(static_cast<size_t>(rows * cols), std::numeric_limits<double>::quiet_NaN());
  for (int64_t i = 0; i < used * cols; ++i) values[static_cast<size_t>(i)] = trial.random.normal();
  return trial.input(dtype, rows, cols, values, gap);
}

// Checks that rows from `used` on hold the NaN that the output began with. RETURNS the values of the others.
inline std::vector<double> used_values(Trial& trial, const Operand& output, int64_t used) {
  std::vector<double> values = output.values();
  const auto end = static_cast<size_t>(used * output.matrix().cols);
  for (size_t i = end; i < values.size(); ++i)
    trial.expect_true(std::isnan(values[i]), "a row past the last was written");
  values.resize(end);
  return values;
}

}  // namespace gptrain::ops_test
