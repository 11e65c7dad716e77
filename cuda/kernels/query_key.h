// Launches of the ops that prepare queries and keys (see ops/ops.h). Operands are device memory; nothing waits. Throws
// std::logic_error for heads of more than 1024 features.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const QueryKeyForward& op, Stream stream);
void cuda_run(const QueryKeyBackward& op, Stream stream, std::byte* scratch);

}  // namespace gptrain
