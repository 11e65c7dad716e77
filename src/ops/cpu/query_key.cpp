#include <cmath>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"

namespace gptrain::inline ops {
namespace {

// RETURNS the floats of a block of rows: sums for both gammas, and a work vector.
int64_t block_floats(const QueryKeyBackward& op) { return 3 * op.head_size; }

template <typename Op>
RotaryView rotary_of(const Op& op, const CpuContext& context) {
  return op.rotary ? context.rotary_tables->find(op.angles, op.head_size, op.token_rows.end()) : RotaryView{};
}

}  // namespace

RotaryView RotaryTables::find(const RotaryAngles& angles, int64_t head_size, int64_t num_tokens) {
  for (const auto& table : tables_) {
    if (table->angles == angles && table->head_size == head_size && table->num_tokens == num_tokens)
      return {table->cosines.data(), table->sines.data()};
  }
  auto table = std::make_unique<Table>();
  table->angles = angles;
  table->head_size = head_size;
  table->num_tokens = num_tokens;
  const int64_t pairs = head_size / 2;
  table->cosines.reserve(num_tokens * pairs);
  table->sines.reserve(num_tokens * pairs);
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(head_size);
    frequencies.push_back(angles.scaled(std::pow(angles.theta, exponent)));
  }
  for (int64_t token = 0; token < num_tokens; ++token) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(token) * frequency;
      table->cosines.push_back(static_cast<float>(std::cos(angle)));
      table->sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  tables_.push_back(std::move(table));
  return {tables_.back()->cosines.data(), tables_.back()->sines.data()};
}

int64_t cpu_scratch_bytes(const QueryKeyBackward& op, int) {
  return RowBlocks(op.dq.rows).num_blocks * block_floats(op) * dtype_bytes(DType::f32);
}

void cpu_run(const QueryKeyForward& op, const CpuContext& context) {
  const RotaryView rotary = rotary_of(op, context);
  parallel_shares(context.num_threads, op.q.rows,
                  [&](int64_t first, int64_t end) { context.kernels->query_key_forward(op, rotary, first, end); });
}

void cpu_run(const QueryKeyBackward& op, const CpuContext& context) {
  const RotaryView rotary = rotary_of(op, context);
  const RowBlocks blocks(op.dq.rows);
  const int64_t stride = block_floats(op);
  auto* const work = reinterpret_cast<float*>(context.scratch);
  parallel_shares(context.num_threads, blocks.num_blocks, [&](int64_t first, int64_t end) {
    for (int64_t block = first; block < end; ++block)
      context.kernels->query_key_backward(op, rotary, blocks.first_row(block), blocks.end_row(block),
                                          work + block * stride);
  });
  if (!op.q_gamma.given()) return;
  context.kernels->add_partials(work, blocks.num_blocks, stride, op.q_gamma_sums.as<double>(), 0, op.head_size);
  context.kernels->add_partials(work + op.head_size, blocks.num_blocks, stride, op.k_gamma_sums.as<double>(), 0,
                                op.head_size);
}

}  // namespace gptrain::ops
