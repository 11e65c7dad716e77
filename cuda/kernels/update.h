// Launches of the update's ops (see ops/ops.h). Operands are device memory; nothing waits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stream.h"
#include "ops/ops.h"

namespace gptrain {

void cuda_run(const SquaredNorm& op, Stream stream, std::byte* scratch);
void cuda_run(const PrepareUpdate& op, Stream stream);
void cuda_run(const AdamW& op, Stream stream);

}  // namespace gptrain
