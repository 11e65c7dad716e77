// Launches of the own attention (see ops/ops.h): any head size up to 256, any length, with or without dropout, f32,
// bf16 or f16. Operands are device memory; nothing waits. A longer head throws std::logic_error.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const AttentionForward& op, Stream stream);
// `scratch` has gpu_scratch_bytes(op) bytes.
void cuda_run(const AttentionBackward& op, Stream stream, std::byte* scratch);

}  // namespace gptrain
