// Launches of ProjectionMatrix, SampleRows and BiasGradient (see ops/projection.h). Operands are device memory; nothing
// waits.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const ProjectionMatrix& op, Stream stream);
void cuda_run(const SampleRows& op, Stream stream);
// `scratch`: gpu_scratch_bytes of the op, aligned to 4 bytes.
void cuda_run(const BiasGradient& op, Stream stream, std::byte* scratch);

}  // namespace gptrain
