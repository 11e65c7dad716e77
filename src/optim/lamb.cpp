#include "optim/tensor_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {

OptimizerType lamb_type() {
  return tensor_optimizer_type<adam_op<Lamb>>(OptimizerKind::lamb, {{"exp_avg"}, {"exp_avg_sq"}});
}

}  // namespace gptrain::optim
