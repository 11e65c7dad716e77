#include "optim/adamw.h"

#include "optim/element_optimizer.h"

namespace gptrain {
namespace {

// f32 in every precision: in bf16 a second moment with beta2 near 1 moves by less than half a place in each step. It
// would need random bits of its own, and its noise goes into every step's size.
StateColumns adamw_columns(const OptimizerConfig&) { return {{"exp_avg", DType::f32}, {"exp_avg_sq", DType::f32}}; }

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                      std::byte* tables) {
  AdamW op;
  op.beta1 = config.beta1;
  op.beta2 = config.beta2;
  op.eps = config.eps;
  op.weight_decay = config.weight_decay;
  return std::make_unique<ElementOptimizer<AdamW>>(op, context, seed, tables);
}

}  // namespace

OptimizerType adamw_type() { return {OptimizerKind::adamw, adamw_columns, element_table_bytes, make_adamw}; }

}  // namespace gptrain
