// Choice of the values that a unit moves to the host between its forward and its backward pass, and of the time of the
// copies.
#pragma once

#include <cstdint>

namespace gptrain::inline schedule {

// `input`: only the unit's input is copied, and its saved values are recomputed. For units at which recomputation
// begins.
enum class OffloadedPart : uint8_t { none, input, record };

struct UnitOffload {
  OffloadedPart part = OffloadedPart::none;
  // Times of the two copies, in passes of units. Each is at least 1.
  int32_t leaves_for = 1;   // from the forward pass to the end of the copy to the host, which frees the device memory
  int32_t comes_ahead = 1;  // from the beginning of the copy back to the pass that reads it

  bool any() const { return part != OffloadedPart::none; }
  bool operator==(const UnitOffload&) const = default;
};

}  // namespace gptrain::schedule
