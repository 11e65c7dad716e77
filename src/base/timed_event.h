// One piece of a step's work and the time it took, as profiles and traces keep it: an op, a collective, a wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/int128.h"

namespace gptrain {

struct TimedEvent {
  std::string_view name;     // of the kind of work; static storage
  std::string shape;         // sizes and dtypes, for people: "N=8192 in=768 out=2304 bf16"
  double start_seconds = 0;  // on the clock of steady_seconds
  double end_seconds = 0;
  Flops model_flops = 0;
  Flops executed_flops = 0;
  int64_t bytes_moved = 0;
};

// Seconds on a clock that never jumps.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gptrain
