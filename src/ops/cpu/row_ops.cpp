// Ops in which each row stands for itself.
#include <algorithm>
#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"

namespace gptrain {

int64_t cpu_scratch_bytes(const NormForward&, int) { return 0; }
int64_t cpu_scratch_bytes(const ResidualAdd&, int) { return 0; }
int64_t cpu_scratch_bytes(const BranchBackward&, int) { return 0; }
int64_t cpu_scratch_bytes(const ActivationForward&, int) { return 0; }
int64_t cpu_scratch_bytes(const ActivationBackward&, int) { return 0; }
int64_t cpu_scratch_bytes(const EncodeBlocks&, int) { return 0; }
int64_t cpu_scratch_bytes(const DecodeBlocks&, int) { return 0; }
int64_t cpu_scratch_bytes(const ProjectionMatrix&, int) { return 0; }
int64_t cpu_scratch_bytes(const SampleRows&, int) { return 0; }
int64_t cpu_scratch_bytes(const Cast&, int) { return 0; }
int64_t cpu_scratch_bytes(const WeightedSum&, int) { return 0; }
int64_t cpu_scratch_bytes(const Add&, int) { return 0; }
int64_t cpu_scratch_bytes(const AddSums&, int) { return 0; }

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
  parallel_shares(context.num_threads, op.dy.rows,
                  [&](int64_t first, int64_t end) { context.kernels->activation_backward(op, first, end); });
}

void cpu_encode_blocks(const EncodeBlocks& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.x.rows,
                  [&](int64_t first, int64_t end) { context.kernels->encode_blocks(op, first, end); });
}

void cpu_decode_blocks(const DecodeBlocks& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.x.rows,
                  [&](int64_t first, int64_t end) { context.kernels->decode_blocks(op, first, end); });
}

void cpu_projection_matrix(const ProjectionMatrix& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.s.rows,
                  [&](int64_t first, int64_t end) { context.kernels->projection_matrix(op, first, end); });
}

void cpu_sample_rows(const SampleRows& op, const CpuContext& context) {
  parallel_shares(context.num_threads, op.y.rows,
                  [&](int64_t first, int64_t end) { context.kernels->sample_rows(op, first, end); });
}

namespace {

// A flat buffer is one long row, so rows are cut into chunks: body(row, first column, end column).
template <typename Body>
void for_each_chunk_of_rows(int num_threads, const Matrix& matrix, const Body& body) {
  constexpr int64_t chunk = 1 << 14;
  const int64_t chunks_per_row = (matrix.cols + chunk - 1) / chunk;
  parallel_shares(num_threads, matrix.rows * chunks_per_row, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t column = i % chunks_per_row * chunk;
      body(i / chunks_per_row, column, std::min(column + chunk, matrix.cols));
    }
  });
}

}  // namespace

void cpu_cast(const Cast& op, const CpuContext& context) {
  for_each_chunk_of_rows(context.num_threads, op.from,
                         [&](int64_t row, int64_t first, int64_t end) { context.kernels->cast(op, row, first, end); });
}

void cpu_weighted_sum(const WeightedSum& op, const CpuContext& context) {
  const auto a_factor = static_cast<float>(
      op.squared_norm.given() ? op.a_factor / std::max(std::sqrt(*op.squared_norm.as<const double>()), op.least_norm)
                              : op.a_factor);
  for_each_chunk_of_rows(context.num_threads, op.to, [&](int64_t row, int64_t first, int64_t end) {
    context.kernels->weighted_sum(op, a_factor, row, first, end);
  });
}

// As small as a norm's weights or a bias: not worth a second thread.
void cpu_add_sums(const AddSums& op) {
  const auto* const sums = op.sums.as<const double>();
  auto* const gradient = op.gradient.as<float>();
  for (int64_t i = 0; i < op.gradient.cols; ++i)
    gradient[i] = static_cast<float>(op.accumulate ? sums[i] + static_cast<double>(gradient[i]) : sums[i]);
}

void cpu_add(const Add& op, const CpuContext& context) {
  for_each_chunk_of_rows(context.num_threads, op.to,
                         [&](int64_t row, int64_t first, int64_t end) { context.kernels->add(op, row, first, end); });
}

}  // namespace gptrain
