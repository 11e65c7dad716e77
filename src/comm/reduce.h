// The arithmetic of all reductions, the same for every transport.
#pragma once

#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace gptrain::inline comm {

// out[i] = inputs[0][i] op inputs[1][i] op ... for i < count, combined in this order. bf16 and f16 are widened to f32
// and rounded once at the end. `out` may be one of the inputs; otherwise they must not overlap. A NaN in any input
// gives NaN; integer sums wrap around. dtype: f32, bf16, f16, f64, i32 or i64; any other writes nothing (check_call
// refuses it).
void reduce(std::span<const void* const> inputs, void* out, int64_t count, DType dtype, ReduceOp op);

}  // namespace gptrain::comm
