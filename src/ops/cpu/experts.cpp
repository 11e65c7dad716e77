// Routing, and the ops on rows of experts.
#include <algorithm>
#include <numeric>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/scratch_carver.h"

namespace gptrain::inline ops {
namespace {

int64_t runs_of(const RouterRule& rule, const Matrix& logits) { return logits.rows / rule.own_rows(); }

int64_t used_rows(const Matrix& offsets) { return offsets.as<const int32_t>()[offsets.cols - 1]; }

struct RouteScratch {
  float *weights, *keys;       // [N, k]; [N, E], or null: experts are chosen by their logits
  double *sums, *shares;       // [runs, E + 4], [runs, E]
  int32_t *candidates, *kept;  // rows of one expert with a capacity, [L]; copies that each expert has so far, [E]

  RouteScratch(const RouteTokens& op, ScratchCarver& carver) {
    const int64_t runs = op.statistics.given() ? runs_of(op.rule, op.logits) : 0, experts = op.logits.cols;
    const bool has_keys = op.bias.given() || op.rule.groups > 1;
    weights = carver.take<float>(op.experts.count());
    keys = has_keys ? carver.take<float>(op.logits.rows * experts) : nullptr;
    sums = carver.take<double>(runs * num_routing_sums(experts));
    shares = carver.take<double>(runs * experts);
    const bool has_capacity = op.rule.capacity > 0;
    candidates = carver.take<int32_t>(has_capacity ? experts * op.rule.capacity : 0);
    kept = carver.take<int32_t>(has_capacity ? experts : 0);
  }
};

int32_t* slots_of(const RouteTokens& op, int64_t row) { return op.slots.as<int32_t>() + row * op.slots.stride; }

const int32_t* experts_of(const RouteTokens& op, int64_t row) {
  return op.experts.as<const int32_t>() + row * op.experts.stride;
}

// The copies that the experts of one run of rows keep. Each expert's form a heap, whose first one is the next that
// would be dropped.
class KeptCopies {
 public:
  KeptCopies(const RouteTokens& op, const RouteScratch& scratch) : op_(op), scratch_(scratch) {
    std::fill(scratch.kept, scratch.kept + op.logits.cols, 0);
  }

  // `copy`: row k + j. Copies come in the order of rows.
  void add(int32_t copy, int32_t expert) {
    int32_t* const heap = scratch_.candidates + expert * op_.rule.capacity;
    int32_t& count = scratch_.kept[expert];
    const auto is_better = [this](int32_t a, int32_t b) { return better(a, b); };
    if (count == op_.rule.capacity) {
      if (op_.rule.drop == DropRule::position || !better(copy, heap[0])) return drop(copy);
      std::pop_heap(heap, heap + count, is_better);
      drop(heap[--count]);
    }
    heap[count++] = copy;
    if (op_.rule.drop == DropRule::probability) std::push_heap(heap, heap + count, is_better);
  }

 private:
  bool better(int32_t a, int32_t b) const {
    const float of_a = scratch_.weights[a], of_b = scratch_.weights[b];
    return of_a > of_b || (!(of_a < of_b) && a < b);
  }
  void drop(int32_t copy) const { slots_of(op_, copy / op_.experts.cols)[copy % op_.experts.cols] = -1; }

  const RouteTokens& op_;
  const RouteScratch& scratch_;
};

// Sets the slots of copies that are dropped to -1, all others to 0.
void drop_copies(const RouteTokens& op, const RouteScratch& scratch) {
  const int64_t k = op.experts.cols;
  for (int64_t first = 0; first < op.logits.rows; first += op.rule.capacity_rows) {
    KeptCopies kept(op, scratch);
    for (int64_t row = first; row < first + op.rule.capacity_rows; ++row) {
      std::fill(slots_of(op, row), slots_of(op, row) + k, 0);
      for (int64_t j = 0; j < k; ++j) kept.add(static_cast<int32_t>(row * k + j), experts_of(op, row)[j]);
    }
  }
}

// Counts the experts' rows and assigns them slots. Serial: a row's slot depends on all rows before it. RETURNS the
// number of dropped copies.
int64_t place_copies(const RouteTokens& op, const RouteScratch& scratch) {
  const int64_t num_experts = op.logits.cols, k = op.experts.cols;
  if (op.rule.capacity > 0) drop_copies(op, scratch);
  auto* const offsets = op.offsets.as<int32_t>();
  std::fill(offsets, offsets + num_experts + 1, 0);
  const auto each_copy = [&](const auto& body) {
    for (int64_t row = 0; row < op.logits.rows; ++row) {
      const int32_t* const experts = experts_of(op, row);
      int32_t* const slots = slots_of(op, row);
      for (int64_t j = 0; j < k; ++j) {
        if (op.rule.capacity == 0 || slots[j] >= 0) body(row, j, experts[j], slots[j]);
      }
    }
  };
  // offsets[e + 1] is the number of rows of e, then the slot of its first one, and then of the next.
  each_copy([&](int64_t, int64_t, int32_t expert, int32_t&) { ++offsets[expert + 1]; });
  int32_t first = 0;
  for (int64_t e = 1; e <= num_experts; ++e) {
    const int32_t count = offsets[e];
    offsets[e] = first;
    first += count;
  }
  auto* const rows = op.rows.as<int32_t>();
  auto* const weights = op.weights.as<float>();
  each_copy([&](int64_t row, int64_t j, int32_t expert, int32_t& slot) {
    slot = offsets[expert + 1]++;
    rows[slot] = static_cast<int32_t>(row);
    weights[slot] = scratch.weights[row * k + j];
  });
  return op.experts.count() - first;
}

void add_statistics(const RouteTokens& op, const RouteScratch& scratch, int64_t dropped, const CpuContext& context) {
  const int64_t experts = op.logits.cols, count = num_routing_sums(experts), runs = runs_of(op.rule, op.logits);
  parallel_shares(context.num_threads, runs, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i)
      context.kernels->routing_statistics(op, i, scratch.sums + i * count, scratch.shares + i * experts);
  });
  auto* const statistics = op.statistics.as<double>();
  for (int64_t i = 0; i < runs; ++i) {
    for (int64_t e = 0; e < count; ++e) statistics[e] += scratch.sums[i * count + e];
  }
  statistics[count - 1] += static_cast<double>(dropped);
}

void count_loads(const RouteTokens& op) {
  auto* const loads = op.loads.as<float>();
  for (int64_t run = 0; run < op.loads.rows; ++run) std::fill_n(loads + run * op.loads.stride, op.loads.cols, 0.0F);
  for (int64_t row = 0; row < op.logits.rows; ++row) {
    for (int64_t j = 0; j < op.experts.cols; ++j)
      loads[row / op.rule.own_rows() * op.loads.stride + experts_of(op, row)[j]] += 1;
  }
}

// RETURNS for each run of rows and expert the gradient of the balance loss, whose f_e are constants.
float* balance_gradients(const RouteTokensBackward& op, const CpuContext& context) {
  ScratchCarver carver(context.scratch);
  const int64_t num_experts = op.logits.cols, k = op.experts.cols, length = op.rule.balanced_rows;
  const int64_t runs = runs_of(op.rule, op.logits);
  float* const balance = carver.take<float>(runs * num_experts);
  std::fill(balance, balance + runs * num_experts, 0.0F);
  if (op.balance_factor == 0) return balance;
  const double scale = op.balance_factor * static_cast<double>(op.state->loss_scale.value);
  if (op.excess.given()) {
    const auto factor = static_cast<float>(scale / static_cast<double>(length));
    for (int64_t i = 0; i < runs * num_experts; ++i)
      balance[i] = factor * (1 + op.excess.as<const float>()[i % num_experts]);
    return balance;
  }
  if (op.loads.given()) {
    for (int64_t i = 0; i < runs; ++i)
      std::copy_n(op.loads.as<const float>() + i * op.loads.stride, num_experts, balance + i * num_experts);
  } else {
    for (int64_t row = 0; row < op.logits.rows; ++row) {
      const int32_t* const experts = op.experts.as<const int32_t>() + row * op.experts.stride;
      for (int64_t j = 0; j < k; ++j) balance[row / length * num_experts + experts[j]] += 1;
    }
  }
  const auto factor =
      static_cast<float>(scale * static_cast<double>(num_experts) / static_cast<double>(length * length * k));
  for (int64_t i = 0; i < runs * num_experts; ++i) balance[i] *= factor;
  return balance;
}

}  // namespace

int64_t cpu_scratch_bytes(const RouteTokens& op, int) {
  ScratchCarver carver(nullptr);
  RouteScratch(op, carver);
  return carver.bytes();
}

int64_t cpu_scratch_bytes(const RouteTokensBackward& op, int) {
  ScratchCarver carver(nullptr);
  carver.take<float>(runs_of(op.rule, op.logits) * op.logits.cols);
  return carver.bytes();
}

void cpu_run(const RouteTokens& op, const CpuContext& context) {
  ScratchCarver carver(context.scratch);
  const RouteScratch scratch(op, carver);
  parallel_shares(context.num_threads, op.logits.rows, [&](int64_t first, int64_t end) {
    context.kernels->choose_experts(op, scratch.keys, first, end);
    context.kernels->weigh_experts(op, scratch.weights, first, end);
  });
  const int64_t dropped = place_copies(op, scratch);
  if (op.loads.given()) count_loads(op);
  if (op.statistics.given()) add_statistics(op, scratch, dropped, context);
}

void cpu_run(const AddBalance& op, const CpuContext& context) {
  double& sum = op.statistics.as<double>()[op.logits.cols];
  for (int64_t run = 0; run < op.loads.rows; ++run) sum += context.kernels->balance_of_run(op, run);
}

void cpu_run(const RouteTokensBackward& op, const CpuContext& context) {
  const float* const balance = balance_gradients(op, context);
  parallel_shares(context.num_threads, op.logits.rows,
                  [&](int64_t first, int64_t end) { context.kernels->route_tokens_backward(op, balance, first, end); });
}

void cpu_run(const JitterRows& op, const CpuContext& context) {
  run_rows(op, op.y.rows, context.kernels->jitter_rows, context);
}

void cpu_run(const GateRows& op, const CpuContext& context) {
  op.offsets.as<int32_t>()[0] = 0;
  op.offsets.as<int32_t>()[1] = static_cast<int32_t>(op.logits.rows);
  run_rows(op, op.logits.rows, context.kernels->gate_rows, context);
}

void cpu_run(const GateRowsBackward& op, const CpuContext&) {
  for (int64_t row = 0; row < op.d_logits.rows; ++row) {
    const float weight = op.weights.as<const float>()[row];
    op.d_logits.as<float>()[row * op.d_logits.stride] = op.d_weights.as<const float>()[row] * weight * (1.0F - weight);
  }
}

void cpu_run(const BalanceRouters& op, const CpuContext&) {
  if (op.state->skip != 0) return;
  const auto rate = static_cast<float>(op.rate);
  for (int64_t i = 0; i < op.num_segments; ++i) {
    const BalanceSegment& segment = op.segments[i];
    const double* const routed = op.routed.as<const double>() + segment.first_routed;
    const double mean = std::accumulate(routed, routed + segment.experts, 0.0) / static_cast<double>(segment.experts);
    for (int64_t e = 0; e < segment.count; ++e) {
      float& value = op.values.as<float>()[segment.offset + e];
      const double count = routed[segment.first + e];
      if (segment.is_excess != 0) {
        value = mean > 0 ? static_cast<float>(count / mean - 1) : 0.0F;
      } else {
        value += count < mean ? rate : count > mean ? -rate : 0.0F;
      }
    }
  }
}

void cpu_run(const WriteZeros& op, const CpuContext& context) {
  const auto clear = [&](int64_t first, int64_t end) {
    std::fill(op.to.as<std::byte>() + first, op.to.as<std::byte>() + end, std::byte{0});
  };
  parallel_shares(context.num_threads, op.to.cols * dtype_bytes(op.to.dtype), clear);
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
