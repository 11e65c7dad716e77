// The launches of EncodeBlocks and DecodeBlocks (see ops/block_codes.h). Operands are device memory; nothing waits.
#pragma once

#include "ops/ops.h"
#include "stream.h"

namespace gptrain {

void cuda_run(const EncodeBlocks& op, Stream stream);
void cuda_run(const DecodeBlocks& op, Stream stream);

}  // namespace gptrain
