// A span of time in a step.
#pragma once

namespace gptrain::inline step {

struct TimeSpan {
  double start_seconds = 0;
  double end_seconds = 0;

  double seconds() const { return end_seconds - start_seconds; }
};

}  // namespace gptrain::step
