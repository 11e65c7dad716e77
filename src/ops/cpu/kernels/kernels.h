// The kernels of one instruction set, as its table lists them (see kernel_table.h).
#pragma once

#include "ops/cpu/kernels/kernel_table.h"

namespace gptrain::inline ops::GPTRAIN_ISA {

#define GPTRAIN_KERNEL(result, name, parameters) result name parameters;
#include "ops/cpu/kernels/kernel_list.inc"
#undef GPTRAIN_KERNEL
#define GPTRAIN_DECLARE_UPDATE(Op) \
  void update(const Op& op, const Op::Formula& formula, const UpdateSegment& segment, int64_t first, int64_t end);
GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_DECLARE_UPDATE)
#undef GPTRAIN_DECLARE_UPDATE
#define GPTRAIN_DECLARE_BLOCK_UPDATE(Op) \
  void update_blocks(const Op& op, const Op::Formula& formula, int64_t first, int64_t end);
GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_DECLARE_BLOCK_UPDATE)
#undef GPTRAIN_DECLARE_BLOCK_UPDATE
#define GPTRAIN_DECLARE_TENSOR_NORMS(Op) \
  void tensor_norms(const Op& op, const Op::Update::Formula& formula, int64_t first, int64_t end, double* sums);
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_DECLARE_TENSOR_NORMS)
#undef GPTRAIN_DECLARE_TENSOR_NORMS

}  // namespace gptrain::ops::GPTRAIN_ISA
