// The serial kernels of the CPU backend, one table per instruction set.
//
// Every kernel works on a range of rows, columns or elements of one op; splitting the ranges over threads is the
// caller's part. Results of a range do not depend on how the others are split.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace gptrain {

// Cosines and sines of rotary embedding, [sequence_length][head_size / 2].
struct RotaryView {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

struct KernelTable {
  const char* name;  // of the instruction set: "baseline", "x86_64_v3", "x86_64_v4"

#define GPTRAIN_KERNEL(result, name, parameters) result(*name) parameters;
#include "ops/cpu/kernels/kernel_list.inc"
#undef GPTRAIN_KERNEL
  // Elements [first, end) of the flat buffers, all of one segment, whose formula is given.
#define GPTRAIN_UPDATE_ENTRY(Op)                                                                             \
  void (*update_##Op)(const Op& op, const Op::Formula& formula, const UpdateSegment& segment, int64_t first, \
                      int64_t end);
  GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_ENTRY)
#undef GPTRAIN_UPDATE_ENTRY
  // Blocks [first, end) of the range, under the formula of the step.
#define GPTRAIN_BLOCK_UPDATE_ENTRY(Op) \
  void (*update_##Op)(const Op& op, const Op::Formula& formula, int64_t first, int64_t end);
  GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE_ENTRY)
#undef GPTRAIN_BLOCK_UPDATE_ENTRY
  // Of elements [first, end) of one segment: the squares of weights and of what the formula measures go to sums[0] and sums[1].
#define GPTRAIN_TENSOR_NORMS_ENTRY(Op) \
  void (*norms_##Op)(const Op& op, const Op::Update::Formula& formula, int64_t first, int64_t end, double* sums);
  GPTRAIN_FOR_EACH_NORMS(GPTRAIN_TENSOR_NORMS_ENTRY)
#undef GPTRAIN_TENSOR_NORMS_ENTRY
};

#ifdef __x86_64__
#define GPTRAIN_KERNEL_ISAS(X) X(baseline) X(x86_64_v3) X(x86_64_v4)
#else
#define GPTRAIN_KERNEL_ISAS(X) X(baseline)
#endif

// The best table that this CPU can run and ONEDNN_MAX_CPU_ISA allows.
const KernelTable& select_kernels();

}  // namespace gptrain
