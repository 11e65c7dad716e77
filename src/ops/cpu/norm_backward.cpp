#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"

namespace gptrain::inline ops {

// RETURNS the floats of a block of rows: sums for gamma and beta, [h] each.
int64_t cpu_scratch_bytes(const NormBackward& op, int) {
  return RowBlocks(op.x.rows).num_blocks * 2 * op.x.cols * dtype_bytes(DType::f32);
}

void cpu_run(const NormBackward& op, const CpuContext& context) {
  const RowBlocks blocks(op.x.rows);
  const int64_t cols = op.x.cols;
  const int64_t stride = 2 * cols;
  auto* const partials = reinterpret_cast<float*>(context.scratch);
  parallel_shares(context.num_threads, blocks.num_blocks, [&](int64_t first, int64_t end) {
    for (int64_t block = first; block < end; ++block) {
      float* const sums = partials + block * stride;
      context.kernels->norm_backward(op, blocks.first_row(block), blocks.end_row(block), sums, sums + cols);
    }
  });
  parallel_column_blocks(context.num_threads, cols, [&](int64_t first, int64_t end) {
    context.kernels->add_partials(partials, blocks.num_blocks, stride, op.gamma_sums.as<double>(), first, end);
    if (op.beta_sums.given())
      context.kernels->add_partials(partials + cols, blocks.num_blocks, stride, op.beta_sums.as<double>(), first, end);
  });
  run_amax(op.dx, op.amax, context);
}

}  // namespace gptrain::ops
