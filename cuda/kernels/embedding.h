// Launches of the embedding's ops (see ops/ops.h). Operands are device memory; nothing waits. A token outside the
// vocabulary, which a device cannot report, contributes nothing.
#pragma once

#include <cstddef>

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const EmbeddingForward& op, Stream stream);
void cuda_run(const EmbeddingBackward& op, Stream stream, std::byte* scratch);

}  // namespace gptrain
