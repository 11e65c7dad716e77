// What of a unit's forward pass lies on the host until its backward pass, and when it goes and comes.
#pragma once

#include <cstdint>

namespace gptrain {

// `input` of units that other units are run again through: what they save is made again, too.
enum class OffloadedPart : uint8_t { none, input, record };

struct UnitOffload {
  OffloadedPart part = OffloadedPart::none;
  // Passes of units between the one that leaves the part and the end of its copy, whose memory is free then; and between
  // the beginning of its copy back and the pass that reads it. At least one each.
  int32_t leaves_for = 1;
  int32_t comes_ahead = 1;

  bool any() const { return part != OffloadedPart::none; }
  bool operator==(const UnitOffload&) const = default;
};

}  // namespace gptrain
