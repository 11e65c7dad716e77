// Scratch memory that each op needs on the CPU backend, in bytes; 0 for most. The footprints report these sizes, the
// plan reserves them, and CpuBackend refuses an op that finds less. Each is defined beside its op.
#pragma once

#include <cstdint>

#include "ops/every_op.h"

namespace gptrain {

#define GPTRAIN_DECLARE_CPU_SCRATCH(Op) int64_t cpu_scratch_bytes(const Op& op, int num_threads);
GPTRAIN_FOR_EACH_OP(GPTRAIN_DECLARE_CPU_SCRATCH)
#undef GPTRAIN_DECLARE_CPU_SCRATCH

}  // namespace gptrain
