// The axes over which layouts are compared with one rank, and the sets of cases made of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ranks.h"

namespace gptrain::testing {

using Overrides = std::vector<std::string>;

// A layout of a small llama whose sizes divide by two and by three, with 12 samples a step, and what else it overrides.
struct SmallLayout {
  int64_t tensor, data;
  Overrides overrides;
  int64_t pipeline = 1;

  int64_t world_size() const { return tensor * data * pipeline; }
};
RunConfig config_of(const SmallLayout& layout, const Overrides& more);
Outcome train(const SmallLayout& layout, const Overrides& more, int steps);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
// The L2 norm of a - b over that of b.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b);

// One value of an axis: its label in the table, and the overrides that set it.
struct AxisValue {
  std::string label;
  std::vector<std::string> overrides;
};

struct Axis {
  std::string name;
  bool of_model;  // also holds for the one rank that the layout is compared with
  std::vector<AxisValue> values;
};
const std::vector<Axis>& layout_axes();

// One value of each axis. Sizes of the model that every layout needs to divide follow from the tensor size.
class LayoutCase {
 public:
  explicit LayoutCase(std::vector<size_t> choice) : choice_(std::move(choice)) {}

  const std::vector<size_t>& choice() const { return choice_; }
  int64_t tensor_size() const { return number_of("tensor"); }
  int64_t data_size() const { return number_of("data"); }
  int64_t world_size() const { return tensor_size() * data_size(); }
  std::string name() const;

  // At most eight ranks, ZeRO only where there are ranks to share with, and whatever the config's rules allow.
  bool possible() const;
  RunConfig config() const;
  // The same model and samples on one rank, in one micro-batch.
  RunConfig config_of_one_rank() const;
  // The same model on one rank, a few samples a step: for the steps that come before the comparison.
  RunConfig config_of_start() const;

 private:
  int64_t number_of(const std::string& axis) const;
  std::vector<std::string> overrides(bool model_only) const;

  std::vector<size_t> choice_;  // by axis
};

// Every possible combination.
std::vector<LayoutCase> full_product();
// Indices of choices among which every pair of values of two axes occurs that occurs in any of `choices`; where
// some_cases(), every value: greedily, with a fixed seed. A choice is a value of each axis.
std::vector<size_t> covering(const std::vector<std::vector<size_t>>& choices);
// Cases among which every pair of values of two axes occurs that occurs in any of `cases`; or every value.
std::vector<LayoutCase> covering(const std::vector<LayoutCase>& cases);

// How far the step of a layout is from that of one rank.
struct Difference {
  double first_moment = 0;  // relative L2 distance of the worst section of a tensor
  std::string moment_of;
  double weight = 0;
  std::string weight_of;
  double loss = 0;  // relative, of the first step
  double norm = 0;
  std::string torn;  // see Outcome

  // The bounds of DESIGN.md's "Same results".
  bool small() const;
};
// Matrices' sections that are split on their own (queries, keys, values) are compared on their own. The keys' bias,
// whose true gradient is zero, counts by absolute size, as a part of the bias of all three.
// The first moment is the optimizer's: exp_avg or momentum; where there is none, exp_avg_sq, or of a matrix that of its rows
// and columns.
Difference difference(const ModelSpec& spec, const Outcome& one, const Outcome& many);

// One step with fresh moments from weights of ten steps, on one rank and on the layout's.
Difference compare_with_one_rank(const LayoutCase& layout, const Wrapping& wrapping = {});

}  // namespace gptrain::testing
