// Chooses for the state of how many units on disk memory has room at a time (memory.disk_units = 0).
#pragma once

#include <cstdint>

#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// No update begins before the norm, so drives rest while passes run, once they have read ahead as many units as memory
// has room for and written as many behind. Returns the smallest number of units with which they do not rest, at nominal
// rates (fit/nominal_times.h), or the largest one that the stage's ranks have memory for, if that is smaller; at least
// choices.landed_units.
int64_t busy_disk_units(const PlanCase& run, int32_t stage, const StepChoices& choices);

}  // namespace gptrain::fit
