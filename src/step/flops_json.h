// FLOP counts in JSON.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/int128.h"

namespace gptrain::inline step {

// An exact integer up to 2^63 - 1, which every reader of JSON understands; floating point beyond.
inline nlohmann::ordered_json flops_json(Flops flops) {
  if (flops <= static_cast<Flops>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(flops);
  return static_cast<double>(flops);
}

}  // namespace gptrain::step
