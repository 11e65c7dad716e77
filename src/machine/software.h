// How a trainer runs a planned step: gptrain itself, or those whose published times predictions are held against.
#pragma once

#include <array>
#include <string_view>

#include "parallel/groups.h"

namespace gptrain {

struct Software {
  std::string_view name = "gptrain";
  bool fused_attention = true;  // false: scores of all pairs are stored, see unfused_attention_seconds
  // By lane: ops go on while its collectives run. Without it the rank waits for each; for a transfer it sends.
  std::array<bool, num_lanes> overlaps = all_lanes(true);
  // With sequence parallelism rows are gathered before their product, which gptrain makes piece by piece.
  bool gathers_before_products = false;
  bool sums_gradients_last = false;  // after all passes, where gptrain sums a unit's as soon as they are complete

  static constexpr std::array<bool, num_lanes> all_lanes(bool value) {
    std::array<bool, num_lanes> lanes{};
    lanes.fill(value);
    return lanes;
  }
};

// Megatron-LM as of arXiv 2104.04473 and 2205.05198: attention in parts, and a stream that waits for everything.
constexpr Software megatron_lm{"megatron-lm", false, Software::all_lanes(false), true, true};

// The same with sequence parallelism, whose gathers and sums arXiv 2205.05198 overlaps with the products of the backward
// pass.
constexpr Software megatron_lm_sequence = [] {
  Software software = megatron_lm;
  software.overlaps[static_cast<size_t>(LaneKind::tensor)] = true;
  return software;
}();

}  // namespace gptrain
