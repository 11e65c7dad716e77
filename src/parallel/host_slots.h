// Memory on the host of a GPU through which weights and gradients on disk pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// Slots as the device has them (ParameterStore::weight_slots, gradient_slots), for units on disk. Units on the host
// need none.
class HostSlots {
 public:
  static int64_t bytes(const ParameterStore& parameters) {
    const StateLayout& layout = parameters.state_layout();
    const std::vector<int64_t>& away = layout.away_units();
    const bool on_disk = std::any_of(away.begin(), away.end(), [&](int64_t unit) { return layout.lands(unit); });
    return on_disk ? parameters.weight_slots().bytes() + parameters.gradient_slots().bytes() : 0;
  }

  // Borrows the parameters. `start`: a multiple of StateLayout::range_multiple; null: there are no slots.
  HostSlots(const ParameterStore& parameters, std::byte* start) : parameters_(parameters), start_(start) {}

  // Return where a unit's weights or gradients lie on the host while they are copied to the device or from it.
  std::byte* weights(int64_t unit) const {
    if (!parameters_.state_layout().lands(unit)) return parameters_.landing(unit, AwayPart::weights);
    return start_ + parameters_.weight_slots().offset(unit);
  }
  std::byte* gradients(int64_t unit) const {
    if (!parameters_.state_layout().lands(unit)) return parameters_.landing(unit, AwayPart::gradients);
    return start_ + parameters_.weight_slots().bytes() + parameters_.gradient_slots().offset(unit);
  }

 private:
  const ParameterStore& parameters_;
  std::byte* start_;
};

}  // namespace gptrain::parallel
