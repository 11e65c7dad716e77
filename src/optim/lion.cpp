#include "optim/lion.h"

#include "optim/element_optimizer.h"

namespace gptrain {
namespace {

StateColumns lion_columns(const OptimizerConfig&) { return {{"exp_avg", DType::f32}}; }

std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                     std::byte* tables) {
  Lion op;
  op.beta1 = config.beta1;
  op.beta2 = config.beta2;
  op.weight_decay = config.weight_decay;
  return std::make_unique<ElementOptimizer<Lion>>(op, context, seed, tables);
}

}  // namespace

OptimizerType lion_type() { return {OptimizerKind::lion, lion_columns, element_table_bytes, make_lion}; }

}  // namespace gptrain
