#include "optim/optimizer.h"

#include <algorithm>
#include <array>

#include "optim/adamw.h"
#include "optim/lion.h"
#include "optim/sgd.h"

namespace gptrain {

const OptimizerType& optimizer_type(OptimizerKind kind) {
  static const std::array types = {adamw_type(), sgd_type(), lion_type()};
  return *std::find_if(types.begin(), types.end(), [kind](const OptimizerType& type) { return type.kind == kind; });
}

}  // namespace gptrain
