#include <fmt/format.h>
#include <stdexcept>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"

namespace gptrain {

int64_t cpu_scratch_bytes(const CrossEntropyStatistics&, int) { return 0; }
int64_t cpu_scratch_bytes(const CrossEntropy&, int) { return 0; }
int64_t cpu_scratch_bytes(const AccumulateLoss&, int) { return 0; }

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

void cpu_cross_entropy_statistics(const CrossEntropyStatistics& op, const CpuContext& context) {
  check_targets(op);
  parallel_shares(context.num_threads, op.logits.rows,
                  [&](int64_t first, int64_t end) { context.kernels->cross_entropy_statistics(op, first, end); });
}

void cpu_cross_entropy(const CrossEntropy& op, const CpuContext& context) {
  check_targets(op);
  parallel_shares(context.num_threads, op.logits.rows,
                  [&](int64_t first, int64_t end) { context.kernels->cross_entropy(op, first, end); });
}

void cpu_accumulate_loss(const AccumulateLoss& op) {
  const auto* const losses = op.losses.as<const float>();
  double sum = op.state->loss_sum;
  for (int64_t i = 0; i < op.losses.cols; ++i) sum += static_cast<double>(losses[i]);
  op.state->loss_sum = sum;
}

}  // namespace gptrain
