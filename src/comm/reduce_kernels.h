// Reduction loops, compiled once per instruction set. GPTRAIN_REDUCE_ISAS and meson.build have the same list.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "comm/communicator.h"

#ifdef __x86_64__
#define GPTRAIN_REDUCE_ISAS(apply) apply(baseline) apply(x86_64_v3)
#else
#define GPTRAIN_REDUCE_ISAS(apply) apply(baseline)
#endif

namespace gptrain::inline comm {

// Implements `reduce` of comm/reduce.h for num_inputs >= 1.
using ReduceKernel = void (*)(const void* const* inputs, int64_t num_inputs, void* out, int64_t count, DType dtype,
                              ReduceOp op);

#define GPTRAIN_DECLARE_REDUCE_KERNEL(isa) \
  namespace isa {                          \
  extern const ReduceKernel reduce_kernel; \
  }
GPTRAIN_REDUCE_ISAS(GPTRAIN_DECLARE_REDUCE_KERNEL)
#undef GPTRAIN_DECLARE_REDUCE_KERNEL

}  // namespace gptrain::comm
