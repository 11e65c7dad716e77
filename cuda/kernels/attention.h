// Launches of our own attention kernels: head size up to 256, any length, with or without dropout, f32, bf16 or f16.
// Throws std::logic_error for a longer head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/run.h"

namespace gptrain::inline cuda {

// `wanted`: [B] in device memory; sequences with 0 are skipped. Null: all are computed. `scratch`:
// gpu_scratch_bytes(op) bytes, of the op with or without max_documents.
void cuda_run(const AttentionForward& op, Stream stream, std::byte* scratch, const int32_t* wanted);
void cuda_run(const AttentionBackward& op, Stream stream, std::byte* scratch, const int32_t* wanted);

// The same for patterns of several runs of keys.
void run_pattern(const AttentionForward& op, Stream stream, std::byte* scratch);
void run_pattern(const AttentionBackward& op, Stream stream, std::byte* scratch);

}  // namespace gptrain::cuda
