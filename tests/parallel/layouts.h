// The axes over which layouts are compared with one rank, and the sets of cases made from them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ranks.h"

namespace gptrain::testing {

using Overrides = std::vector<std::string>;

// A layout of a small llama whose sizes divide by two and by three, with 12 samples a step, and further overrides.
struct SmallLayout {
  int64_t tensor, data;
  Overrides overrides;
  int64_t pipeline = 1;

  int64_t world_size() const { return tensor * data * pipeline; }
};
RunConfig config_of(const SmallLayout& layout, const Overrides& more);
Outcome train(const SmallLayout& layout, const Overrides& more, int steps);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
// Returns the L2 norm of a - b divided by that of b.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b);

// One value of an axis: its label in the table, and the overrides that set it.
struct AxisValue {
  std::string label;
  std::vector<std::string> overrides;
};

struct Axis {
  std::string name;
  bool of_model;  // true: the one-rank reference has the same value
  std::vector<AxisValue> values;
};
const std::vector<Axis>& layout_axes();

// One value of each axis. Model sizes that every layout must divide are derived from the tensor and context sizes.
class LayoutCase {
 public:
  explicit LayoutCase(std::vector<size_t> choice) : choice_(std::move(choice)) {}

  const std::vector<size_t>& choice() const { return choice_; }
  int64_t tensor_size() const { return number_of("tensor"); }
  int64_t data_size() const { return number_of("data"); }
  int64_t context_size() const { return number_of("context"); }
  int64_t world_size() const { return tensor_size() * context_size() * data_size(); }
  std::string name() const;

  // Returns true for at most eight ranks, ZeRO only with several ranks that hold the same parameters, and a config
  // without faults.
  bool possible() const;
  RunConfig config() const;
  // Returns the same model and samples on one rank, in one micro-batch.
  RunConfig config_of_one_rank() const;
  // Returns the same model on one rank with few samples a step, for the steps before the comparison.
  RunConfig config_of_start() const;

 private:
  int64_t number_of(const std::string& axis) const;
  std::vector<std::string> overrides(bool model_only) const;

  std::vector<size_t> choice_;  // index of the chosen value, by axis
};

// Returns every possible combination.
std::vector<LayoutCase> full_product();
// Returns indices of choices that together contain every pair of values of two axes that occurs in `choices`; if
// some_cases(), every single value. Greedy, with a fixed seed. A choice has a value for each axis.
std::vector<size_t> covering(const std::vector<std::vector<size_t>>& choices);
// Returns cases that together contain every pair of values of two axes that occurs in `cases`; if some_cases(), every
// value.
std::vector<LayoutCase> covering(const std::vector<LayoutCase>& cases);

// Distance of a layout's step from one rank's.
struct Difference {
  double first_moment = 0;  // relative L2 distance of the worst tensor section
  std::string moment_of;
  double weight = 0;
  std::string weight_of;
  double loss = 0;  // relative, of the first step
  double norm = 0;
  std::string torn;  // see Outcome

  // Returns true if nothing is torn, moments and weights differ by less than 2e-5, and loss and norm by less than 1e-5.
  bool small() const;
};
// Compares two outcomes. Sections of a matrix (queries, keys, values) are compared separately. The key bias, whose true
// gradient is zero, counts by absolute size, as part of the bias of all three. The first moment is the optimizer's
// exp_avg or momentum, else its exp_avg_sq, or for a matrix the sums of its rows and columns.
Difference difference(const ModelSpec& spec, const Outcome& one, const Outcome& many);

// Compares one step with fresh moments, from weights of ten steps, on one rank and on the layout.
Difference compare_with_one_rank(const LayoutCase& layout, const Wrapping& wrapping = {});

}  // namespace gptrain::testing
