// The ops of FP8 linears (model/fp8_linear.cpp).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"
#include "ops/step_state.h"

namespace gptrain::inline ops {

// Number of parts in which an amax is stored. The amax of a matrix is its largest magnitude, from which an FP8 copy
// takes its scale (Quantize). Ops that compute such a matrix have an operand `amax`, [1, amax_parts] f32 out or not
// given, and write it without the extra pass of the op Amax; their output must be bf16 then. The largest part is the
// amax, or +infinity if any element is not finite. All parts are written, some of them as 0. Each block of a kernel
// writes its own part, so nothing is cleared before. Maxima do not depend on order, so the amax has the same bits for
// any number of blocks; over ranks, the maximum is taken part by part.
constexpr int64_t amax_parts = 2112;

// Computes the amax of a matrix whose op did not.
struct Amax {
  static constexpr std::string_view name = "amax";
  Matrix x;     // [N, cols] bf16
  Matrix amax;  // [1, amax_parts] f32 out
};

// FP8 copies of a bf16 matrix under one scale for all of it (base/fp8.h has the formats and the scale): rows = fp8(x *
// scale), transposed = its transpose, inverse_scale = 1 / scale, with the scale that follows from `amax`: the amax of x
// or of a larger matrix that contains x (current scaling), or a forecast from earlier steps (delayed scaling). Elements
// beyond the format's range under that scale become its largest number. If `amax` is not finite, inverse_scale is NaN,
// and so is every product of the copies; an element that is not finite becomes NaN under any scale. column_sums = sums
// over the rows of x, which AddSums adds to a bias' gradient. REQUIRES: rows and columns of x are multiples of 16;
// matrices and their rows begin at multiples of 16 bytes.
struct Fp8Copies {
  Matrix amax;              // [1, amax_parts] f32, or [1, 1]: the amax itself
  Matrix rows;              // [N, cols] f8e4m3 or f8e5m2 out, or not given
  Matrix transposed;        // [cols, N] like rows, out, or not given where rows is
  Matrix inverse_scale;     // [1, 1] f32 out
  Matrix column_sums = {};  // [1, cols] f64 out, or not given
  Matrix largest = {};      // [1, 1] f32, at least -infinity, raised to the amax of x, or not given

  bool given() const { return inverse_scale.given(); }
  DType dtype() const { return rows.given() ? rows.dtype : transposed.dtype; }
};

// Writes FP8 copies of a matrix that is stored. The ops of activations write those of their outputs without storing
// these.
struct Quantize {
  static constexpr std::string_view name = "quantize";
  Matrix x;  // [N, cols] bf16
  Fp8Copies to;
};

// Ends a step of delayed scaling (precision.amax_history), after PrepareUpdate: the step's amaxes become a row of the
// history, in the place of the oldest, and each amax of the forecast the largest of its column, or `initial` if all are
// 0. An amax below 0 (none was found) or not finite counts as 0. Does nothing if state->skip.
struct RollAmaxes {
  static constexpr std::string_view name = "roll_amaxes";
  Matrix amaxes;    // [1, n] f32: of the step
  Matrix history;   // [length, n] f32, in and out; the row of the update before which there were u is u % length
  Matrix initial;   // [1, n] f32
  Matrix forecast;  // [1, n] f32 out
  const StepState* state;
};

// c (+)= a_scale b_scale a b^T (+ bias): all three products of an FP8 linear. Tensor cores need both factors with rows
// along the depth k: y = x w^T takes the rows of x and w; dx = dy w the rows of dy and the transposed w; dw = dy^T x
// the transposed dy and x. Sums are in f32; if both factors are f8e4m3 and c is bf16, as in forward, a GPU may sum with
// the 14 bits of its tensor cores' accumulators. REQUIRES: all three sizes are multiples of 16; matrices and their rows
// begin at multiples of 16 bytes.
struct ScaledProduct {
  static constexpr std::string_view name = "scaled_product";
  Matrix a;                 // [m, k] f8e4m3 or f8e5m2
  Matrix b;                 // [n, k] the same, but not both f8e5m2
  Matrix a_scale, b_scale;  // [1, 1] f32
  Matrix bias;              // [1, n] bf16 or not given
  Matrix c;                 // [m, n] bf16 or f32 out
  bool accumulate;          // adds to c; REQUIRES c to be f32
  int64_t true_terms = -1;  // multiply-adds without padding, at most m n k, for model FLOPs only; -1: m n k
};

}  // namespace gptrain::ops

#define GPTRAIN_FOR_EACH_FP8_OP(X) X(Amax) X(Quantize) X(RollAmaxes) X(ScaledProduct)
