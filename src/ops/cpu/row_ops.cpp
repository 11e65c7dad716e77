// Ops in which each row stands for itself.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"

namespace gptrain {

int64_t cpu_scratch_bytes(const NormForward&, int) { return 0; }
int64_t cpu_scratch_bytes(const ResidualAdd&, int) { return 0; }
int64_t cpu_scratch_bytes(const BranchBackward&, int) { return 0; }
int64_t cpu_scratch_bytes(const ActivationForward&, int) { return 0; }
int64_t cpu_scratch_bytes(const ActivationBackward&, int) { return 0; }
int64_t cpu_scratch_bytes(const Cast&, int) { return 0; }

void cpu_norm_forward(const NormForward& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.x.rows,
                  [&](int64_t first, int64_t end) { context.kernels->norm_forward(op, first, end); });
}

void cpu_residual_add(const ResidualAdd& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.x.rows,
                  [&](int64_t first, int64_t end) { context.kernels->residual_add(op, first, end); });
}

void cpu_branch_backward(const BranchBackward& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.dx.rows,
                  [&](int64_t first, int64_t end) { context.kernels->branch_backward(op, first, end); });
}

void cpu_activation_forward(const ActivationForward& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.x.rows,
                  [&](int64_t first, int64_t end) { context.kernels->activation_forward(op, first, end); });
}

void cpu_activation_backward(const ActivationBackward& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.x.rows,
                  [&](int64_t first, int64_t end) { context.kernels->activation_backward(op, first, end); });
}

// A flat buffer is one long row, so rows are cut into chunks.
void cpu_cast(const Cast& op, const CpuContext& context) {
  constexpr int64_t chunk = 1 << 14;
  const int64_t chunks_per_row = (op.from.cols + chunk - 1) / chunk;
  parallel_shares(context.num_threads, op.from.rows * chunks_per_row, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t column = i % chunks_per_row * chunk;
      context.kernels->cast(op, i / chunks_per_row, column, std::min(column + chunk, op.from.cols));
    }
  });
}

}  // namespace gptrain
