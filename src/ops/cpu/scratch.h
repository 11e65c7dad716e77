// Scratch memory that each op needs on the CPU backend, in bytes; 0 for most. The footprints report these sizes, the
// plan reserves them, and CpuBackend throws if an op has less. Each function is defined beside its op.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace gptrain::inline ops {

template <typename Op>
int64_t cpu_scratch_bytes(const Op&, int /*num_threads*/) {
  return 0;
}
int64_t cpu_scratch_bytes(const NormBackward& op, int num_threads);
int64_t cpu_scratch_bytes(const LinearForward& op, int num_threads);
int64_t cpu_scratch_bytes(const LinearBackwardInput& op, int num_threads);
int64_t cpu_scratch_bytes(const LinearBackwardWeight& op, int num_threads);
int64_t cpu_scratch_bytes(const QueryKeyBackward& op, int num_threads);
int64_t cpu_scratch_bytes(const AttentionForward& op, int num_threads);
int64_t cpu_scratch_bytes(const AttentionBackward& op, int num_threads);
int64_t cpu_scratch_bytes(const AttentionPartForward& op, int num_threads);
int64_t cpu_scratch_bytes(const AttentionPartBackward& op, int num_threads);
int64_t cpu_scratch_bytes(const SquaredNorm& op, int num_threads);
int64_t cpu_scratch_bytes(const RouteTokens& op, int num_threads);
int64_t cpu_scratch_bytes(const RouteTokensBackward& op, int num_threads);
int64_t cpu_scratch_bytes(const GroupedLinearForward& op, int num_threads);
int64_t cpu_scratch_bytes(const GroupedLinearBackwardInput& op, int num_threads);
int64_t cpu_scratch_bytes(const GroupedLinearBackwardWeight& op, int num_threads);
#define GPTRAIN_DECLARE_NORMS_SCRATCH(Op) int64_t cpu_scratch_bytes(const Op& op, int num_threads);
GPTRAIN_FOR_EACH_NORMS(GPTRAIN_DECLARE_NORMS_SCRATCH)
#undef GPTRAIN_DECLARE_NORMS_SCRATCH

}  // namespace gptrain::ops
