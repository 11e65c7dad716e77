// Optimizers, precisions and memory-saving methods as axes: cases that contain every pair of their values, on every
// kind of layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layouts.h"
#include "ops/target.h"

namespace gptrain::testing {

// One value of each axis.
class MethodCase {
 public:
  explicit MethodCase(std::vector<size_t> choice) : choice_(std::move(choice)) {}

  const std::vector<size_t>& choice() const { return choice_; }
  std::string name() const;
  int64_t world_size() const;
  bool possible() const;  // the config's rules allow it
  // Returns the same methods on the next layout that allows them.
  MethodCase on_next_layout() const;
  // Returns the config. With memory.recompute "optimal" the budget is a third of the way from the least memory to
  // keeping all.
  RunConfig config(const Target& target) const;
  // Returns the same config with everything kept, on the device.
  RunConfig config_that_keeps_all() const;
  // Returns true if both configs must give the same bits on the target, by configs/README.md.
  bool has_bits_of_keeping_all(const Target& target) const;

 private:
  RunConfig parsed(bool keeps_all) const;

  std::vector<size_t> choice_;  // index of the chosen value, by axis
};

// Returns cases for every pair of values of two axes that the config's rules allow; if some_cases(), for every value.
std::vector<MethodCase> method_cases();

}  // namespace gptrain::testing
