// Launches of the loss ops (see ops/ops.h). Operands are device memory; nothing waits. A device cannot report a target
// outside the vocabulary: its loss is NaN, so that the step is skipped.
#pragma once

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const CrossEntropyStatistics& op, Stream stream);
void cuda_run(const CrossEntropy& op, Stream stream);
void cuda_run(const AccumulateLoss& op, Stream stream);

}  // namespace gptrain
