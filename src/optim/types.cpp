#include "optim/types.h"

#include <algorithm>
#include <array>

#include "parallel/island_average.h"

namespace gptrain::inline optim {

const OptimizerType& optimizer_type(OptimizerKind kind) {
  static const std::array types = {adafactor_type(), adamw_type(),        adamw_8bit_type(), lamb_type(),
                                   lars_type(),      lion_type(),         muon_type(),       onebit_adam_type(),
                                   sgd_type(),       zero_one_adam_type()};
  return *std::find_if(types.begin(), types.end(), [kind](const OptimizerType& type) { return type.kind == kind; });
}

StateColumns optimizer_columns(const OptimizerConfig& config) {
  StateColumns columns = optimizer_type(config.type).columns;
  if (config.ema > 0) columns.push_back({ema_column});
  return columns;
}

StateColumns state_columns(const StepConfig& config) {
  StateColumns columns = optimizer_columns(config.optimizer);
  for (const StateColumn& column : outer_columns(config.parallel.local_steps)) columns.push_back(column);
  return columns;
}

}  // namespace gptrain::optim
