// Which layout comes nearest where none fits.
#pragma once

#include <cstdint>
#include <limits>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "planner/layout_search.h"

namespace gptrain {

// The least that is missing where a layout does not fit.
struct Miss {
  int64_t bytes = std::numeric_limits<int64_t>::max();
  RunLayout layout;
  bool is_exact = false;  // else at least so much

  void add(int64_t missing, const RunLayout& of) {
    if (missing < bytes) *this = {missing, of};
  }
};

// Of the layout that lacks the least by its lower bound, which leaves activations out, and of another one that lacks as
// little by it: that whose plan takes less, of whose rank a device has `room` bytes. Where neither can be planned, what is
// known.
Miss nearest_of(const RunConfig& config, const Machine& machine, int64_t room, const Miss& by_bound, const RunLayout& other);

}  // namespace gptrain
