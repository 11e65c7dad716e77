// Launches of the own attention: any head size up to 256, any length, with or without dropout, f32, bf16 or f16. A
// longer head throws std::logic_error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/run.h"

namespace gptrain {

// `wanted`, [B] in device memory: sequences with 0 are left as they are. Null: none is. `scratch` has
// gpu_scratch_bytes(op) bytes, or as many without documents' room.
void cuda_run(const AttentionForward& op, Stream stream, std::byte* scratch, const int32_t* wanted);
void cuda_run(const AttentionBackward& op, Stream stream, std::byte* scratch, const int32_t* wanted);

}  // namespace gptrain
