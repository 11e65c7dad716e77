// Decides when a loss has spiked (run.rollback). Arithmetic only.
#pragma once

#include "checkpoint/manifest.h"
#include "config/run_config.h"

namespace gptrain::inline train {

// Adds a step's loss. The window holds the last `window` losses that were not high. Once it is full, a loss is high if
// it is not finite or more than `spike` standard deviations above the window's mean. `steps` high losses in a row are a
// spike; a loss that is not high ends the row.
void add_loss(const RollbackConfig& rollback, double loss, LossHistory& losses);
// Returns true if the last `steps` losses or more were high.
bool is_spike(const RollbackConfig& rollback, const LossHistory& losses);

struct LossSpread {
  double mean;
  double deviation;  // standard deviation of the population
};
// Returns the spread of the window. REQUIRES: the window is not empty.
LossSpread spread_of(const LossHistory& losses);

// Moves the high losses into the window, so that they count like any other.
void accept_spike(LossHistory& losses);

}  // namespace gptrain::train
