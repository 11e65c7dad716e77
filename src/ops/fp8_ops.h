// The ops of FP8 linears (model/fp8_linear.cpp).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/matrix.h"

namespace gptrain {

// The amax of a matrix, its largest magnitude, is what an FP8 copy of it takes its scale from (Quantize). The ops whose
// output may be such a matrix have an operand `amax`, [1, amax_parts] f32 out or not given: they find it on the way,
// with no pass of its own (which Amax is). The output is bf16 then. The largest of the parts is the amax, and +infinity
// where anything is not finite; all parts are written, some of them as 0. In parts, each block of a kernel leaves its
// own and nothing has to be cleared before; a maximum does not depend on the order in which it is taken, so it has the
// same bits however many parts there are, and over ranks it is a maximum of every part.
constexpr int64_t amax_parts = 2112;

// The amax of a matrix that came without it.
struct Amax {
  static constexpr std::string_view name = "amax";
  Matrix x;     // [N, cols] bf16
  Matrix amax;  // [1, amax_parts] f32 out
};

// FP8 copies of a matrix under one scale for all of it (current scaling; base/fp8.h has the formats and the scale):
// rows = fp8(x * scale), transposed = its transpose, inverse_scale = 1 / scale, with the scale that the amax asks for:
// of x, or of a larger matrix that x is a part of. Where anything in that is not finite, inverse_scale is NaN, and so
// is all that is computed with the copies. column_sums = sums over the rows of x, what AddSums adds to the gradient of
// a bias. Rows and columns of x are multiples of 16; matrices begin at multiples of 16 bytes, as do their rows.
struct Quantize {
  static constexpr std::string_view name = "quantize";
  Matrix x;                 // [N, cols] bf16
  Matrix amax;              // [1, amax_parts] f32
  Matrix rows;              // [N, cols] f8e4m3 or f8e5m2 out, or not given
  Matrix transposed;        // [cols, N] like rows, out, or not given where rows is
  Matrix inverse_scale;     // [1, 1] f32 out
  Matrix column_sums = {};  // [1, cols] f64 out, or not given
};

// c (+)= a_scale b_scale a b^T (+ bias): every product of an FP8 linear, each with factors whose rows run along the
// depth of the product, as tensor cores take them. y = x w^T from the rows of x and w; dx = dy w from the rows of dy
// and the transposed w; dw = dy^T x from the transposed dy and x. Sums are in f32; where both factors are f8e4m3 and c
// is bf16, as forward, a GPU may keep them to the 14 bits of its tensor cores' own sums. All three sizes are multiples
// of 16; matrices begin at multiples of 16 bytes, as do their rows.
struct ScaledProduct {
  static constexpr std::string_view name = "scaled_product";
  Matrix a;                 // [m, k] f8e4m3 or f8e5m2
  Matrix b;                 // [n, k] the same, but not both f8e5m2
  Matrix a_scale, b_scale;  // [1, 1] f32
  Matrix bias;              // [1, n] bf16 or not given
  Matrix c;                 // [m, n] bf16 or f32 out
  bool accumulate;          // adds to c, which is f32 then
  int64_t true_terms = -1;  // of m n k, those that count in the model (-1: all); only model FLOPs look at it
};

}  // namespace gptrain

#define GPTRAIN_FOR_EACH_FP8_OP(X) X(Amax) X(Quantize) X(ScaledProduct)
