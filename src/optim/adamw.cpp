#include "optim/adamw.h"

#include "optim/element_optimizer.h"

namespace gptrain {
namespace {

// f32 in every precision: in bf16 a second moment with beta2 near 1 moves by less than half a place in each step. It
// would need random bits of its own, and its noise goes into every step's size.
StateColumns columns(const OptimizerConfig& config) {
  StateColumns columns = {{"exp_avg", DType::f32}, {"exp_avg_sq", DType::f32}};
  if (config.ema > 0) columns.push_back({ema_column, DType::f32});
  return columns;
}

std::unique_ptr<Optimizer> make(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                std::byte* tables) {
  AdamWEma op;
  op.beta1 = config.beta1;
  op.beta2 = config.beta2;
  op.eps = config.eps;
  op.weight_decay = config.weight_decay;
  op.ema = config.ema;
  if (config.ema > 0) return std::make_unique<ElementOptimizer<AdamWEma>>(op, context, seed, tables);
  return std::make_unique<ElementOptimizer<AdamW>>(op, context, seed, tables);
}

}  // namespace

OptimizerType adamw_type() { return {OptimizerKind::adamw, columns, element_table_bytes, make}; }

}  // namespace gptrain
