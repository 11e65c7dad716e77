// AdamW (ops/adamw.h gives the formula): two moments for each parameter.
#pragma once

#include "optim/optimizer.h"

namespace gptrain {

OptimizerType adamw_type();

}  // namespace gptrain
