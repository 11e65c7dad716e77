#include "optim/element_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

Sgd sgd_op(const OptimizerConfig& config) {
  Sgd op;
  op.momentum = config.momentum;
  op.nesterov = config.nesterov;
  op.weight_decay = config.weight_decay;
  return op;
}

}  // namespace

OptimizerType sgd_type() { return element_optimizer_type<sgd_op>(OptimizerKind::sgd, {{"momentum"}}); }

}  // namespace gptrain::optim
