// Launches of the own attention (see ops/ops.h): any head size up to 256, any length, with or without dropout, f32,
// bf16 or f16. Operands are device memory; nothing waits. A longer head throws std::logic_error.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// `wanted`, [B] in device memory: sequences with 0 are left as they are. Null: none is.
void cuda_run(const AttentionForward& op, Stream stream, const int32_t* wanted = nullptr);
// `scratch` has gpu_scratch_bytes(op) bytes, or as many without documents' room.
void cuda_run(const AttentionBackward& op, Stream stream, std::byte* scratch, const int32_t* wanted = nullptr);

}  // namespace gptrain
