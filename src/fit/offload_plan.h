// The cost of copies of saved activations to the host and back: for how many blocks compute hides them, and when each
// copy is best begun and awaited.
#pragma once

#include <cstdint>
#include <functional>

#include "config/run_config.h"
#include "ops/target.h"
#include "parallel/program.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

using ActionSeconds = std::function<double(const Action&)>;

struct PlayedPasses {
  double seconds = 0;
  double waited = 0;  // the part of `seconds` spent waiting for copies
};
// Simulates the schedule of one stage: its passes one after another, with copies beside them. Ignores waits for other
// stages, which would leave copies more time.
PlayedPasses play_passes(const Schedule& schedule, const BufferBytes& bytes, const Target& target,
                         const ActionSeconds& seconds);

// Sets leaves_for and comes_ahead of all units that `choices` offload: as many passes as the copy and the copies queued
// with it take, at most as many as may be in flight. `options`: those of a schedule with these choices.
void time_copies(UnitChoices& choices, ScheduleOptions options, const BufferBytes& bytes, const Target& target,
                 const ActionSeconds& seconds);

// Returns the number of blocks for offload "hidden": the most whose copies cost the passes of the stage at most 0.5% in
// waits, at nominal rates. 0 on the CPU, where copies run among the ops. Plans the stage's first rank, so that all
// ranks of a stage get the same number.
int64_t hidden_blocks(const PlanCase& run, int32_t stage);

}  // namespace gptrain::fit
