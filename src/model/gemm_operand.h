// A factor of a linear's products.
#pragma once

#include "base/matrix.h"
#include "ops/fp8_ops.h"

namespace gptrain::inline model {

// A matrix that a linear multiplies by its weight: its input, or the gradient of its output. `amax`: [1, amax_parts]
// f32, written by the op that computes x; given only if the linear asked for it (Linear::input_buffer).
struct GemmOperand {
  Matrix x;  // not given if fp8 is
  Matrix amax = {};
  // This rank's rows of x, if the linear gathers the other ranks' rows into x (Linear::exchanges_pieces).
  Matrix own = {};
  Fp8Copies fp8 = {};  // copies in the place of x (Linear::quantized_input_buffer)
};

}  // namespace gptrain::model
