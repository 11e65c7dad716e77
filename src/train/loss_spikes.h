// When a loss has spiked (run.rollback): arithmetic only.
#pragma once

#include "checkpoint/manifest.h"
#include "config/run_config.h"

namespace gptrain {

// A loss is above when it is more than `spike` standard deviations above the mean of the window, which is the last
// `window` losses that were not above; none is while there are fewer. Where one is above that is not finite it counts,
// too. So many steps in a row that are above are a spike. Where they are fewer, they are forgotten.
void add_loss(const RollbackConfig& rollback, double loss, LossHistory& losses);
bool is_spike(const RollbackConfig& rollback, const LossHistory& losses);

// Of the window, which is not empty. The deviation is that of the population.
struct LossSpread {
  double mean, deviation;
};
LossSpread spread_of(const LossHistory& losses);

// What was above counts as any other loss from here on.
void accept_spike(LossHistory& losses);

}  // namespace gptrain
