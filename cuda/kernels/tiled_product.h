// A matrix product of any shape, stride and alignment, for products without a library algorithm.
#pragma once

#include "base/matrix.h"
#include "ops/ops.h"
#include "stream.h"

namespace gptrain::inline cuda {

// c [rows, cols] = a [rows, depth] b [depth, cols] (+ bias), or += if `accumulate`. A transposed operand is stored with
// its second dimension as rows.
struct Product {
  Matrix a, b;  // f32, bf16 or f16, both of one type
  Matrix bias;  // [1, cols] in a's type, or not given
  Matrix c;     // f32 or a's type; output
  bool a_transposed = false;
  bool b_transposed = false;
  bool accumulate = false;

  int64_t depth() const { return a_transposed ? a.rows : a.cols; }
};

inline Product product_of(const LinearForward& op) {
  return {.a = op.x, .b = op.w, .bias = op.bias, .c = op.y, .b_transposed = true};
}
inline Product product_of(const LinearBackwardInput& op) { return {.a = op.dy, .b = op.w, .bias = {}, .c = op.dx}; }
// Returns the product without the bias gradient.
inline Product product_of(const LinearBackwardWeight& op) {
  return {.a = op.dy, .b = op.x, .bias = {}, .c = op.dw, .a_transposed = true, .accumulate = op.accumulate};
}

// Does not use tensor cores. Sums every element in f32 in depth order. Operands are device memory; nothing waits.
void cuda_run(const Product& product, Stream stream);

}  // namespace gptrain::cuda
