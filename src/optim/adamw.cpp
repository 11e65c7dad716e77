#include "optim/element_optimizer.h"
#include "optim/types.h"

namespace gptrain::inline optim {

// Moments are f32 in every precision. In bf16 a second moment with beta2 near 1 would change by less than half a unit
// in the last place per step, so it would need random bits of its own, and their noise would change every step's size.
OptimizerType adamw_type() {
  return element_optimizer_type<adam_op<AdamW>>(OptimizerKind::adamw, {{"exp_avg"}, {"exp_avg_sq"}});
}

}  // namespace gptrain::optim
