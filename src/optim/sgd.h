// SGD with momentum (ops/sgd.h gives the formula): one moment for each parameter.
#pragma once

#include "optim/optimizer.h"

namespace gptrain {

OptimizerType sgd_type();

}  // namespace gptrain
