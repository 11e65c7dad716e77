// Routing, and the ops on rows of experts.
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/scratch_carver.h"

namespace gptrain::inline ops {
namespace {

int64_t sequences_of(const RouterRule& rule, const Matrix& logits) { return logits.rows / rule.sequence_length; }

int64_t used_rows(const Matrix& offsets) { return offsets.as<const int32_t>()[offsets.cols - 1]; }

// Counts the experts' rows and assigns them slots. Serial: a row's slot depends on all rows before it.
void place_copies(const RouteTokens& op) {
  const int64_t num_experts = op.logits.cols, k = op.experts.cols;
  auto* const offsets = op.offsets.as<int32_t>();
  std::fill(offsets, offsets + num_experts + 1, 0);
  const auto each_copy = [&](const auto& body) {
    for (int64_t row = 0; row < op.logits.rows; ++row) {
      const int32_t* const experts = op.experts.as<const int32_t>() + row * op.experts.stride;
      int32_t* const slots = op.slots.as<int32_t>() + row * op.slots.stride;
      for (int64_t j = 0; j < k; ++j) body(row, experts[j], slots[j]);
    }
  };
  // offsets[e + 1] is the number of rows of e, then the slot of its first one, and then of the next.
  each_copy([&](int64_t, int32_t expert, int32_t&) { ++offsets[expert + 1]; });
  int32_t first = 0;
  for (int64_t e = 1; e <= num_experts; ++e) {
    const int32_t count = offsets[e];
    offsets[e] = first;
    first += count;
  }
  auto* const rows = op.rows.as<int32_t>();
  each_copy([&](int64_t row, int32_t expert, int32_t& slot) {
    slot = offsets[expert + 1]++;
    rows[slot] = static_cast<int32_t>(row);
  });
}

struct StatisticsScratch {
  double *sums, *shares;  // [sequences, E + 3], [sequences, E]

  StatisticsScratch(const RouteTokens& op, ScratchCarver& carver) {
    const int64_t sequences = sequences_of(op.rule, op.logits);
    sums = carver.take<double>(sequences * (op.logits.cols + 3));
    shares = carver.take<double>(sequences * op.logits.cols);
  }
};

void add_statistics(const RouteTokens& op, const CpuContext& context) {
  ScratchCarver carver(context.scratch);
  const StatisticsScratch scratch(op, carver);
  const int64_t cols = op.logits.cols, sequences = sequences_of(op.rule, op.logits);
  parallel_shares(context.num_threads, sequences, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i)
      context.kernels->routing_statistics(op, i, scratch.sums + i * (cols + 3), scratch.shares + i * cols);
  });
  auto* const statistics = op.statistics.as<double>();
  for (int64_t i = 0; i < sequences; ++i) {
    for (int64_t e = 0; e < cols + 3; ++e) statistics[e] += scratch.sums[i * (cols + 3) + e];
  }
}

// RETURNS for each sequence and expert the gradient of the balance loss, whose f_e are constants.
float* balance_gradients(const RouteTokensBackward& op, const CpuContext& context) {
  ScratchCarver carver(context.scratch);
  const int64_t num_experts = op.logits.cols, k = op.experts.cols, length = op.rule.sequence_length;
  const int64_t sequences = sequences_of(op.rule, op.logits);
  float* const balance = carver.take<float>(sequences * num_experts);
  std::fill(balance, balance + sequences * num_experts, 0.0F);
  if (op.balance_factor == 0) return balance;
  for (int64_t row = 0; row < op.logits.rows; ++row) {
    const int32_t* const experts = op.experts.as<const int32_t>() + row * op.experts.stride;
    for (int64_t j = 0; j < k; ++j) balance[row / length * num_experts + experts[j]] += 1;
  }
  const auto factor = static_cast<float>(op.balance_factor * static_cast<double>(op.state->loss_scale.value) *
                                         static_cast<double>(num_experts) / static_cast<double>(length * length * k));
  for (int64_t i = 0; i < sequences * num_experts; ++i) balance[i] *= factor;
  return balance;
}

}  // namespace

int64_t cpu_scratch_bytes(const RouteTokens& op, int) {
  if (!op.statistics.given()) return 0;
  ScratchCarver carver(nullptr);
  StatisticsScratch(op, carver);
  return carver.bytes();
}

int64_t cpu_scratch_bytes(const RouteTokensBackward& op, int) {
  ScratchCarver carver(nullptr);
  carver.take<float>(sequences_of(op.rule, op.logits) * op.logits.cols);
  return carver.bytes();
}

void cpu_run(const RouteTokens& op, const CpuContext& context) {
  run_rows(op, op.logits.rows, context.kernels->choose_experts, context);
  place_copies(op);
  run_rows(op, op.logits.rows, context.kernels->weigh_experts, context);
  if (op.statistics.given()) add_statistics(op, context);
}

void cpu_run(const RouteTokensBackward& op, const CpuContext& context) {
  const float* const balance = balance_gradients(op, context);
  parallel_shares(context.num_threads, op.logits.rows,
                  [&](int64_t first, int64_t end) { context.kernels->route_tokens_backward(op, balance, first, end); });
}

void cpu_run(const GatherRows& op, const CpuContext& context) {
  run_rows(op, used_rows(op.offsets), context.kernels->gather_rows, context);
}

void cpu_run(const CombineRows& op, const CpuContext& context) {
  run_rows(op, op.y.rows, context.kernels->combine_rows, context);
}

void cpu_run(const ExpertActivationForward& op, const CpuContext& context) {
  run_rows(op, used_rows(op.offsets), context.kernels->expert_activation_forward, context);
}

void cpu_run(const ExpertActivationBackward& op, const CpuContext& context) {
  run_rows(op, used_rows(op.offsets), context.kernels->expert_activation_backward, context);
}

}  // namespace gptrain::ops
