// A moment of a simulated step.
#pragma once

#include <array>
#include <cstddef>

#include "machine/event_times.h"

namespace gptrain::inline planner {

// A moment of the step, and the chain of work that led to it.
struct Moment {
  double time = 0;                            // seconds since the step's start
  std::array<double, num_spendings> spent{};  // seconds of the longest chain of work by Spending; they add up to `time`

  void add(size_t spending, double seconds) {
    time += seconds;
    spent[spending] += seconds;
  }
  // Goes on with a chain of work that begins at 0.
  void add(const Moment& more) {
    time += more.time;
    for (size_t i = 0; i < num_spendings; ++i) spent[i] += more.spent[i];
  }
  // Becomes `other` if that is later.
  void await(const Moment& other) {
    if (other.time > time) *this = other;
  }
};

}  // namespace gptrain::planner
