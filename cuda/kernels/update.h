// Launches of the update's ops (see ops/ops.h). Operands are device memory; nothing waits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "launch.h"
#include "ops/ops.h"

namespace gptrain {

int64_t cuda_scratch_bytes(const SquaredNorm& op);
void cuda_run(const SquaredNorm& op, Stream stream, std::byte* scratch);
void cuda_run(const PrepareUpdate& op, Stream stream);
void cuda_run(const AdamW& op, Stream stream);

}  // namespace gptrain
