// AdamW (ops/adamw.h gives the formula): two moments for each parameter, and where the config asks for it an
// exponential moving average of the weights (ops/adamw_ema.h).
#pragma once

#include "optim/optimizer.h"

namespace gptrain {

OptimizerType adamw_type();

}  // namespace gptrain
