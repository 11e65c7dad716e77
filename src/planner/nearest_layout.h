// The layout that comes nearest to fitting, if none fits.
#pragma once

#include <cstdint>
#include <limits>

#include "config/run_config.h"
#include "machine/event_times.h"
#include "planner/layout_search.h"

namespace gptrain::inline planner {

// A layout that does not fit, and its missing memory.
struct Miss {
  int64_t bytes = std::numeric_limits<int64_t>::max();  // missing device memory; the initial value: no layout yet
  RunLayout layout;
  bool is_exact = false;  // whether `bytes` is exact; otherwise a lower bound

  // Replaces this miss by that of the layout `of`, if `missing` is less.
  void add(int64_t missing, const RunLayout& of) {
    if (missing < bytes) *this = {missing, of};
  }
};

// Plans by_bound.layout, which by its lower bound exceeds the memory by the least, and `other`, which may exceed it by
// less: bounds can leave activations out. Returns the one whose plan exceeds `device_bytes` bytes by less, or
// `by_bound` if neither can be planned.
Miss nearest_of(const RunConfig& config, const Machine& machine, int64_t device_bytes, const Miss& by_bound,
                const RunLayout& other);

}  // namespace gptrain::planner
