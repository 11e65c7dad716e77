// Lion (ops/lion.h gives the formula): one moment for each parameter.
#pragma once

#include "optim/optimizer.h"

namespace gptrain {

OptimizerType lion_type();

}  // namespace gptrain
