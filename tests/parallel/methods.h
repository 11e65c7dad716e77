// Optimizers, precisions and methods that save memory, as axes: cases among which every pair of their values occurs, on
// every kind of layout.
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
  bool possible() const;  // by the config's rules
  // The same methods on the next layout on which they are possible.
  MethodCase on_next_layout() const;
  // With memory.recompute "optimal": with a budget of a third of what there is between the least and keeping all.
  RunConfig config(const Target& target) const;
  // The same, where everything is kept, on the device.
  RunConfig config_that_keeps_all() const;
  // Whether both must give the same bits on such a target, by configs/README.md.
  bool has_bits_of_keeping_all(const Target& target) const;

 private:
  RunConfig parsed(bool keeps_all) const;

  std::vector<size_t> choice_;  // by axis
};

// Every pair of values of two axes that the config's rules allow; where some_cases(), every value.
std::vector<MethodCase> method_cases();

}  // namespace gptrain::testing
