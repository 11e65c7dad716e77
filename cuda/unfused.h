// Own kernels that do the work of an epilogue after the product alone (see ops/fused_product.h).
#pragma once

#include <cstddef>

#include "kernels/column_sums.h"
#include "kernels/run.h"
#include "ops/fused_product.h"
#include "stream.h"

namespace gptrain::inline cuda {

// Return true if the op does more than the product and its bias.
inline bool has_more_than_product(const LinearForward& op) { return op.pre_activation.given(); }
inline bool has_more_than_product(const LinearBackwardInput& op) { return op.pre_activation.given(); }
inline bool has_more_than_product(const LinearBackwardWeight& op) { return op.d_bias.given(); }

// Run that further work; `scratch` is the op's.
inline void run_rest(const LinearForward& op, Stream stream, std::byte*) { cuda_run(activation_of(op), stream); }
inline void run_rest(const LinearBackwardInput& op, Stream stream, std::byte*) { cuda_run(activation_of(op), stream); }
inline void run_rest(const LinearBackwardWeight& op, Stream stream, std::byte* scratch) {
  cuda_run(ColumnSums{op.dy, op.d_bias, op.accumulate}, stream, scratch);
}

}  // namespace gptrain::cuda
