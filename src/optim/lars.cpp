#include "optim/tensor_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

Lars lars_op(const OptimizerConfig& config) {
  Lars op;
  op.momentum = config.momentum;
  op.trust = config.trust_coefficient;
  op.weight_decay = config.weight_decay;
  return op;
}

}  // namespace

OptimizerType lars_type() { return tensor_optimizer_type<lars_op>(OptimizerKind::lars, {{"momentum"}}); }

}  // namespace gptrain::optim
