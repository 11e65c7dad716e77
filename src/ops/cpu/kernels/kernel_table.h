// The serial kernels of the CPU backend, one table per instruction set.
//
// Every kernel works on a range of rows, columns or elements of one op; the caller divides the ranges among threads.
// Results of a range do not depend on the division.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace gptrain::inline ops {

// Cosines and sines of rotary embedding, [tokens][head_size / 2].
struct RotaryView {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

struct KernelTable {
  const char* name;  // instruction set: "baseline", "x86_64_v3", "x86_64_v4"

#define GPTRAIN_KERNEL(result, name, parameters) result(*name) parameters;
#include "ops/cpu/kernels/kernel_list.inc"
#undef GPTRAIN_KERNEL
  // Update elements [first, end) of the flat buffers. REQUIRES: all lie in `segment`, with which `formula` has begun.
#define GPTRAIN_UPDATE_ENTRY(Op)                                                                             \
  void (*update_##Op)(const Op& op, const Op::Formula& formula, const UpdateSegment& segment, int64_t first, \
                      int64_t end);
  GPTRAIN_FOR_EACH_UPDATE(GPTRAIN_UPDATE_ENTRY)
#undef GPTRAIN_UPDATE_ENTRY
  // Update blocks [first, end) of the range, with the step's formula.
#define GPTRAIN_BLOCK_UPDATE_ENTRY(Op) \
  void (*update_##Op)(const Op& op, const Op::Formula& formula, int64_t first, int64_t end);
  GPTRAIN_FOR_EACH_BLOCK_UPDATE(GPTRAIN_BLOCK_UPDATE_ENTRY)
#undef GPTRAIN_BLOCK_UPDATE_ENTRY
  // Sum squares over elements [first, end) of one segment: of weights to sums[0], of the formula's `measured` to
  // sums[1].
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

// RETURNS the best table that this CPU supports and ONEDNN_MAX_CPU_ISA allows.
const KernelTable& select_kernels();

}  // namespace gptrain::ops
