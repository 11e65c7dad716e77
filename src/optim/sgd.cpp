#include "optim/sgd.h"

#include "optim/element_optimizer.h"

namespace gptrain {
namespace {

StateColumns sgd_columns(const OptimizerConfig&) { return {{"momentum", DType::f32}}; }

std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config, const UpdateContext& context, uint64_t seed,
                                    std::byte* tables) {
  Sgd op;
  op.momentum = config.momentum;
  op.nesterov = config.nesterov;
  op.weight_decay = config.weight_decay;
  return std::make_unique<ElementOptimizer<Sgd>>(op, context, seed, tables);
}

}  // namespace

OptimizerType sgd_type() { return {OptimizerKind::sgd, sgd_columns, element_table_bytes, make_sgd}; }

}  // namespace gptrain
