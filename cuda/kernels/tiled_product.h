// A matrix product of any shape, stride and alignment: what serves where the library has no algorithm.
#pragma once

#include "base/matrix.h"
#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// c [rows, cols] = a [rows, depth] b [depth, cols] (+ bias), or += where `accumulate`. A transposed factor is stored
// with its second dimension as rows.
struct Product {
  Matrix a, b;  // f32, bf16 or f16, both the same
  Matrix bias;  // [1, cols] like a, or not given
  Matrix c;     // f32, or like a; out
  bool a_transposed = false;
  bool b_transposed = false;
  bool accumulate = false;

  int64_t depth() const { return a_transposed ? a.rows : a.cols; }
};

inline Product product_of(const LinearForward& op) {
  return {.a = op.x, .b = op.w, .bias = op.bias, .c = op.y, .b_transposed = true};
}
inline Product product_of(const LinearBackwardInput& op) { return {.a = op.dy, .b = op.w, .bias = {}, .c = op.dx}; }
// Without the bias' gradient.
inline Product product_of(const LinearBackwardWeight& op) {
  return {.a = op.dy, .b = op.x, .bias = {}, .c = op.dw, .a_transposed = true, .accumulate = op.accumulate};
}

// Without tensor cores. Every element is summed in f32 in the order of the depth. Operands are device memory; nothing
// waits.
void cuda_run(const Product& product, Stream stream);

}  // namespace gptrain
