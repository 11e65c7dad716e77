// Gradient sums stored in bf16. A micro-batch's f32 gradients are added to the sum so far, and the result is rounded
// stochastically (base/dtype.h), so that its expectation is the exact sum. Rounding to nearest would lose a late
// micro-batch's gradient if it is below half a unit in the sum's last place.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "base/philox.h"
#include "ops/element_update.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// A tensor's part of the range of elements.
struct KeptSegment {
  int64_t offset;  // elements from the range's start
  int64_t count;
  PhiloxKey key;
  IndexMap map;
};

// kept = gradients, or with accumulate kept + gradients, added in f32. Element e of a tensor uses word (e % 4) of
// philox(segment.key, {low(e / 4), high(e / 4), low(u), draw}), u = state->updates, the updates before this step: the
// same on every layout and backend, and after a resume. Elements in no segment do not change. Infinity and NaN remain.
struct KeepGradients {
  static constexpr std::string_view name = "keep_gradients";
  using Segment = KeptSegment;

  const Segment* segments = nullptr;  // device memory
  int64_t num_segments = 0;
  const StepState* state = nullptr;
  Matrix gradients;  // [1, elements] f32
  Matrix sums;       // [1, elements] bf16; in with accumulate, out
  bool accumulate = false;
  uint32_t draw = 0;  // number of this sum within the step
};

}  // namespace gptrain::ops
