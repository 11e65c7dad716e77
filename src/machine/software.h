// How a trainer runs a planned step: gptrain, or a trainer whose published times predictions are compared with.
#pragma once

#include <array>
#include <string_view>

#include "parallel/groups.h"

namespace gptrain::inline machine {

struct Software {
  std::string_view name = "gptrain";
  bool fused_attention = true;  // false: scores of all pairs are stored, see unfused_attention_seconds
  // By lane: whether ops run beside the lane's collectives. If not, the rank waits for each collective, and for each
  // transfer that it sends.
  std::array<bool, num_lanes> overlaps = all_lanes(true);
  // With sequence parallelism all rows are gathered before the product; gptrain multiplies each piece as it arrives.
  bool gathers_before_products = false;
  bool sums_gradients_last = false;  // after all passes; gptrain sums a unit's gradients once they are complete

  static constexpr std::array<bool, num_lanes> all_lanes(bool value) {
    std::array<bool, num_lanes> lanes{};
    lanes.fill(value);
    return lanes;
  }
};

// Megatron-LM in arXiv 2104.04473 and 2205.05198: attention is not fused, and no communication overlaps with ops.
constexpr Software megatron_lm{"megatron-lm", false, Software::all_lanes(false), true, true};

// Megatron-LM with sequence parallelism: arXiv 2205.05198 overlaps its gathers and sums with products of the backward
// pass.
constexpr Software megatron_lm_sequence = [] {
  Software software = megatron_lm;
  software.overlaps[static_cast<size_t>(LaneKind::tensor)] = true;
  return software;
}();

}  // namespace gptrain::machine
