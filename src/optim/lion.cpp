#include "optim/element_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {
namespace {

Lion lion_op(const OptimizerConfig& config) {
  Lion op;
  op.beta1 = config.beta1;
  op.beta2 = config.beta2;
  op.weight_decay = config.weight_decay;
  return op;
}

}  // namespace

OptimizerType lion_type() { return element_optimizer_type<lion_op>(OptimizerKind::lion, {{"exp_avg"}}); }

}  // namespace gptrain::optim
