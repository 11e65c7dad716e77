#include "optim/types.h"

#include <algorithm>
#include <array>

namespace gptrain::inline optim {

const OptimizerType& optimizer_type(OptimizerKind kind) {
  static const std::array types = {adafactor_type(), adamw_type(), adamw_8bit_type(), lamb_type(),
                                   lars_type(),      lion_type(),  muon_type(),       sgd_type()};
  return *std::find_if(types.begin(), types.end(), [kind](const OptimizerType& type) { return type.kind == kind; });
}

StateColumns optimizer_columns(const OptimizerConfig& config) {
  StateColumns columns = optimizer_type(config.type).columns;
  if (config.ema > 0) columns.push_back({ema_column});
  return columns;
}

}  // namespace gptrain::optim
