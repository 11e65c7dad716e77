// Launches of the element-wise ops (see ops/ops.h). Operands are device memory; nothing waits.
#pragma once

#include "stream.h"
#include "ops/ops.h"

namespace gptrain {

void cuda_run(const Cast& op, Stream stream);
void cuda_run(const WeightedSum& op, Stream stream);
void cuda_run(const Add& op, Stream stream);
void cuda_run(const AddSums& op, Stream stream);
void cuda_run(const ResidualAdd& op, Stream stream);
void cuda_run(const BranchBackward& op, Stream stream);
void cuda_run(const ActivationForward& op, Stream stream);
void cuda_run(const ActivationBackward& op, Stream stream);

}  // namespace gptrain
