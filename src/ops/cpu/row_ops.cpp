// Ops that compute each row independently of the others.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/cpu_ops.h"

namespace gptrain::inline ops {

void cpu_run(const NormForward& op, const CpuContext& context) {
  run_rows(op, op.x.rows, context.kernels->norm_forward, context);
  run_amax(op.y, op.amax, context);
}

void cpu_run(const ResidualAdd& op, const CpuContext& context) {
  run_rows(op, op.x.rows, context.kernels->residual_add, context);
}

void cpu_run(const BranchBackward& op, const CpuContext& context) {
  run_rows(op, op.dx.rows, context.kernels->branch_backward, context);
  run_amax(op.d_branch, op.amax, context);
}

namespace {

// Runs an op that writes FP8 copies of its output in place of the output: in two steps, as FP8 is not for training on
// a CPU. Returns false if it writes none.
template <typename Op>
bool run_to_fp8(const Op& op, Matrix Op::*output, int64_t cols, const CpuContext& context) {
  if (!op.fp8.given()) return false;
  std::vector<bf16> values(static_cast<size_t>(op.x.rows * cols));
  Op stored = op;
  stored.fp8 = {};
  stored.*output = Matrix(values.data(), DType::bf16, op.x.rows, cols);
  cpu_run(stored, context);
  cpu_run(Quantize{stored.*output, op.fp8}, context);
  return true;
}

}  // namespace

void cpu_run(const ActivationForward& op, const CpuContext& context) {
  if (run_to_fp8(op, &ActivationForward::y, activated_cols(op.kind, op.x.cols), context)) return;
  run_rows(op, op.x.rows, context.kernels->activation_forward, context);
  run_amax(op.y, op.amax, context);
}

void cpu_run(const ActivationBackward& op, const CpuContext& context) {
  if (run_to_fp8(op, &ActivationBackward::dx, op.x.cols, context)) return;
  run_rows(op, op.dy.rows, context.kernels->activation_backward, context);
  run_amax(op.dx, op.amax, context);
}

void cpu_run(const EncodeBlocks& op, const CpuContext& context) {
  run_rows(op, op.x.rows, context.kernels->encode_blocks, context);
}

void cpu_run(const DecodeBlocks& op, const CpuContext& context) {
  run_rows(op, op.x.rows, context.kernels->decode_blocks, context);
}

void cpu_run(const ProjectionMatrix& op, const CpuContext& context) {
  run_rows(op, op.s.rows, context.kernels->projection_matrix, context);
}

void cpu_run(const SampleRows& op, const CpuContext& context) {
  run_rows(op, op.y.rows, context.kernels->sample_rows, context);
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

void cpu_run(const NormalValues& op, const CpuContext& context) {
  for_each_chunk_of_rows(context.num_threads, op.to, [&](int64_t row, int64_t first, int64_t end) {
    context.kernels->normal_values(op, row, first, end);
  });
}

void cpu_run(const Cast& op, const CpuContext& context) {
  for_each_chunk_of_rows(context.num_threads, op.from,
                         [&](int64_t row, int64_t first, int64_t end) { context.kernels->cast(op, row, first, end); });
}

void cpu_run(const WeightedSum& op, const CpuContext& context) {
  const auto a_factor = static_cast<float>(
      op.squared_norm.given() ? op.a_factor / std::max(std::sqrt(*op.squared_norm.as<const double>()), op.least_norm)
                              : op.a_factor);
  for_each_chunk_of_rows(context.num_threads, op.to, [&](int64_t row, int64_t first, int64_t end) {
    context.kernels->weighted_sum(op, a_factor, row, first, end);
  });
}

// Runs on one thread: matrices of the size of a norm's weights or a bias do not pay for a second.
void cpu_run(const AddSums& op, const CpuContext&) {
  auto* const gradient = op.gradient.as<float>();
  for (int64_t i = 0; i < op.gradient.cols; ++i) {
    double sum = 0;
    for (int64_t row = 0; i >= op.first && i < op.first + op.sums.cols && row < op.sums.rows; ++row)
      sum += op.sums.as<const double>()[row * op.sums.stride + i - op.first];
    gradient[i] = static_cast<float>(op.accumulate ? sum + static_cast<double>(gradient[i]) : sum);
  }
}

void cpu_run(const Add& op, const CpuContext& context) {
  for_each_chunk_of_rows(context.num_threads, op.to,
                         [&](int64_t row, int64_t first, int64_t end) { context.kernels->add(op, row, first, end); });
}

void cpu_run(const KeepResidual& op, const CpuContext& context) {
  if (op.state->skip != 0) return;
  cpu_run(Cast{.from = op.errors, .to = op.residual}, context);
}

}  // namespace gptrain::ops
