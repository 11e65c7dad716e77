// The angles of rotary position embeddings.
#pragma once

#include <numbers>

#include "base/kinds.h"

namespace gptrain::inline base {

// Pair i of a head of D features is rotated by scaled(theta^(-2i/D)) radians per token.
struct RotaryAngles {
  double theta = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;  // divisor of the frequencies
  // llama3 only: pairs that turn at least high_freq_factor times within original_length tokens keep their frequency;
  // pairs that turn at most low_freq_factor times have it divided by `factor`; in between the two are interpolated.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_length = 0;

  constexpr double scaled(double frequency) const {
    if (scaling == RopeScaling::none) return frequency;
    double unscaled = 0;
    if (scaling == RopeScaling::llama3) {
      const double turns = original_length * frequency / (2 * std::numbers::pi);
      unscaled = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
      unscaled = unscaled < 0 ? 0 : unscaled > 1 ? 1 : unscaled;
    }
    return (1 - unscaled) * frequency / factor + unscaled * frequency;
  }

  bool operator==(const RotaryAngles&) const = default;
};

}  // namespace gptrain::base
