// Launches of our own attention kernels (see ops/ops.h): head size up to 256, any length, with or without dropout, f32,
// bf16 or f16. Operands are device memory; nothing waits. Throws std::logic_error for a longer head.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

// `wanted`: [B] in device memory; sequences with 0 are skipped. Null: all are computed.
void cuda_run(const AttentionForward& op, Stream stream, const int32_t* wanted = nullptr);
// `scratch`: gpu_scratch_bytes(op) bytes, of the op with or without max_documents.
void cuda_run(const AttentionBackward& op, Stream stream, std::byte* scratch, const int32_t* wanted = nullptr);

}  // namespace gptrain
