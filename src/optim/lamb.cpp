#include "optim/tensor_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

Lamb lamb_op(const OptimizerConfig& config) {
  Lamb op;
  op.beta1 = config.beta1;
  op.beta2 = config.beta2;
  op.eps = config.eps;
  op.weight_decay = config.weight_decay;
  return op;
}

}  // namespace

OptimizerType lamb_type() { return tensor_optimizer_type<lamb_op>(OptimizerKind::lamb, {{"exp_avg"}, {"exp_avg_sq"}}); }

}  // namespace gptrain::optim
