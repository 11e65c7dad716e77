// Launches of the norms' ops (see ops/ops.h). Operands are device memory; nothing waits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stream.h"
#include "ops/ops.h"

namespace gptrain {

void cuda_run(const NormForward& op, Stream stream);
void cuda_run(const NormBackward& op, Stream stream, std::byte* scratch);

}  // namespace gptrain
