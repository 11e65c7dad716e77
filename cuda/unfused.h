// What an epilogue would do, by own kernels after the product alone (see ops/fused_product.h).
#pragma once

#include <cstddef>

#include "kernels/column_sums.h"
#include "kernels/run.h"
#include "ops/fused_product.h"
#include "stream.h"

namespace gptrain {

// Whether there is anything to do beside the product and its bias.
inline bool has_more_than_product(const LinearForward& op) { return op.pre_activation.given(); }
inline bool has_more_than_product(const LinearBackwardInput& op) { return op.pre_activation.given(); }
inline bool has_more_than_product(const LinearBackwardWeight& op) { return op.d_bias.given(); }

// All of it; `scratch` is the op's.
inline void run_rest(const LinearForward& op, Stream stream, std::byte*) { cuda_run(activation_of(op), stream); }
inline void run_rest(const LinearBackwardInput& op, Stream stream, std::byte*) { cuda_run(activation_of(op), stream); }
inline void run_rest(const LinearBackwardWeight& op, Stream stream, std::byte* scratch) {
  cuda_run(ColumnSums{op.dy, op.d_bias, op.accumulate}, stream, scratch);
}

}  // namespace gptrain
