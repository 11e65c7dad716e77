// The errors that compressed sums of gradients leave for the next step.
#pragma once

#include <string_view>

#include "base/matrix.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// kept = errors, unless state->skip is set: then nothing is written.
struct KeepResidual {
  static constexpr std::string_view name = "keep_residual";
  const StepState* state = nullptr;
  Matrix errors;    // [1, n] f32
  Matrix residual;  // [1, n] f32 out
};

}  // namespace gptrain::ops
