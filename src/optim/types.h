// The table of optimizers. Each row is defined in the optimizer's file.
#pragma once

#include "optim/optimizer.h"
#include "parallel/compressed_reducer.h"

namespace gptrain::inline optim {

OptimizerType adafactor_type();
OptimizerType adamw_type();
OptimizerType adamw_8bit_type();
OptimizerType lamb_type();
OptimizerType lars_type();
OptimizerType lion_type();
OptimizerType muon_type();
OptimizerType onebit_adam_type();
OptimizerType sgd_type();
OptimizerType zero_one_adam_type();

// RETURNS beta1 and the columns of state by which the ranks of onebit-adam sum momenta. Only for that type.
MomentumSums momentum_sums(const OptimizerConfig& config);
// Number of the column with errors of this rank's codes of sums, in optimizers that send signs.
constexpr size_t server_errors_column = 2;
// RETURNS the bytes of UpdateContext::exchange.
int64_t exchange_bytes(const OptimizerConfig& config, const ParameterStore& parameters,
                       const GradientMessages& messages);

const OptimizerType& optimizer_type(OptimizerKind kind);  // the row of the table, which lives as long as the program

// RETURNS the type's columns; with OptimizerConfig::ema, the column of the weights' average comes last.
StateColumns optimizer_columns(const OptimizerConfig& config);
// RETURNS these columns, and behind them, if parallel.local_steps has an outer momentum, its column (IslandAverage).
StateColumns state_columns(const StepConfig& config);

}  // namespace gptrain::optim
