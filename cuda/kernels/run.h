// Launches of the ops (ops/ops.h) that our own kernels compute. Operands are device memory; nothing waits. Linears and
// scaled products are declared but not defined, as products.h runs them.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain::inline cuda {

// `scratch`: gpu_scratch_bytes(op) bytes, aligned to 8 bytes.
#define GPTRAIN_DECLARE_CUDA_RUN(Op) void cuda_run(const Op& op, Stream stream, std::byte* scratch = nullptr);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_CUDA_RUN)
#undef GPTRAIN_DECLARE_CUDA_RUN

}  // namespace gptrain::cuda
