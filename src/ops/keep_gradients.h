// Gradients that are kept in bf16: what a micro-batch has, in f32, is added to the sum so far, which is rounded
// stochastically (base/dtype.h), so that its expectation is the exact sum. To nearest, what a late micro-batch adds
// would be lost where it is below half a place of the sum.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "base/philox.h"
#include "ops/element_update.h"
#include "ops/step_state.h"

namespace gptrain {

// A tensor's part of the range.
struct KeptSegment {
  int64_t offset;  // elements from the range's start
  int64_t count;
  PhiloxKey key;
  IndexMap map;
};

// kept = gradients, or with accumulate kept + gradients, added in f32. Element e of a tensor draws word (e % 4) of
// philox(segment.key, {low(e / 4), high(e / 4), low(u), draw}), u = state->updates, which are those of the steps before:
// the same on every layout and backend, and after a resume. What is in no segment is left alone. What is not finite
// stays so.
struct KeepGradients {
  static constexpr std::string_view name = "keep_gradients";
  using Segment = KeptSegment;

  const Segment* segments = nullptr;  // device memory
  int64_t num_segments = 0;
  const StepState* state = nullptr;
  Matrix gradients;  // [1, elements] f32
  Matrix kept;       // [1, elements] bf16; in with accumulate, out
  bool accumulate = false;
  uint32_t draw = 0;  // which of the step's sums this is
};

}  // namespace gptrain
