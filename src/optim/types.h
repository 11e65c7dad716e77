// The rows of the table of optimizers (optimizer.cpp), each of a file of its own.
#pragma once

#include "optim/optimizer.h"

namespace gptrain {

OptimizerType adafactor_type();
OptimizerType adamw_type();
OptimizerType adamw_8bit_type();
OptimizerType lamb_type();
OptimizerType lars_type();
OptimizerType lion_type();
OptimizerType muon_type();
OptimizerType sgd_type();

}  // namespace gptrain
