// Launches of Amax and Quantize (see ops/ops.h). Operands are device memory; nothing waits.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const Amax& op, Stream stream);
// `scratch`: gpu_scratch_bytes of the op, aligned to 8 bytes.
void cuda_run(const Quantize& op, Stream stream, std::byte* scratch);

}  // namespace gptrain
