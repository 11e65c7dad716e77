// Launches of the update ops (see ops/ops.h). Operands are device memory; nothing waits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const SquaredNorm& op, Stream stream, std::byte* scratch);
void cuda_run(const PrepareUpdate& op, Stream stream);
void cuda_run(const KeepGradients& op, Stream stream);
#define GPTRAIN_DECLARE_UPDATE(Op) void cuda_run(const Op& op, Stream stream);
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_DECLARE_UPDATE)
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_DECLARE_UPDATE)
#undef GPTRAIN_DECLARE_UPDATE
#define GPTRAIN_DECLARE_FACTORED(Op) void cuda_run(const Op& op, Stream stream);
GPTRAIN_FOR_EACH_FACTORED(GPTRAIN_DECLARE_FACTORED)
#undef GPTRAIN_DECLARE_FACTORED
#define GPTRAIN_DECLARE_TENSOR_NORMS(Op) void cuda_run(const Op& op, Stream stream, std::byte* scratch);
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_DECLARE_TENSOR_NORMS)
#undef GPTRAIN_DECLARE_TENSOR_NORMS

}  // namespace gptrain
