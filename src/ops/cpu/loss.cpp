#include <fmt/format.h>
#include <stdexcept>

#include "ops/cpu/cpu_ops.h"

namespace gptrain::inline ops {

namespace {

template <typename Op>
void check_targets(const Op& op) {
  for (int64_t i = 0; i < op.logits.rows; ++i) {
    if (op.targets[i] >= op.vocab_size) {
      throw std::logic_error(fmt::format("{}: targets[{}] = {} is outside the vocabulary of {}", Op::name, i,
                                         op.targets[i], op.vocab_size));
    }
  }
}

}  // namespace

void cpu_run(const CrossEntropyStatistics& op, const CpuContext& context) {
  check_targets(op);
  run_rows(op, op.logits.rows, context.kernels->cross_entropy_statistics, context);
}

void cpu_run(const CrossEntropy& op, const CpuContext& context) {
  check_targets(op);
  run_rows(op, op.logits.rows, context.kernels->cross_entropy, context);
}

void cpu_run(const AccumulateLoss& op, const CpuContext&) {
  const auto* const losses = op.losses.as<const float>();
  double sum = op.state->loss_sum;
  for (int64_t i = 0; i < op.losses.cols; ++i) sum += static_cast<double>(losses[i]);
  op.state->loss_sum = sum;
}

}  // namespace gptrain::ops
