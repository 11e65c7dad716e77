// Launches of all ops that own kernels compute (see ops/ops.h). Operands are device memory; nothing waits. Those of
// products.h have none.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// `scratch`: the op's gpu_scratch_bytes, aligned to 8 bytes.
#define GPTRAIN_DECLARE_CUDA_RUN(Op) void cuda_run(const Op& op, Stream stream, std::byte* scratch = nullptr);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_CUDA_RUN)
#undef GPTRAIN_DECLARE_CUDA_RUN

}  // namespace gptrain
