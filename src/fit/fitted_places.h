// Places chosen by memory.offload_optimizer = "fit": the host of a GPU, or drives, as far as memory is short.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// Returns the section `memory` with definite places of optimizer state and weights instead of "fit". As each unit whose
// state is away takes time, the state of as few of the last units is as the device's memory needs. On a CPU the state
// lies on disk then; if that of all units is not enough, and memory.offload_parameters is "fit", too, the weights as
// well. On a GPU state and then weights lie on the host; if the host's memory is short, the optimizer state on disk,
// and then the weights, too. If nothing fits, the places are those that leave most of the device's memory. `units`: the
// choices of the stage's units that take the least memory. Returns the section as it is if it has no "fit".
MemoryConfig fitted_places(const PlanCase& run, int32_t stage, const UnitChoices& units);

// Returns true if the device and the host have the memory that the largest ranks of a stage need with these choices.
bool fits_memory(const PlanCase& run, int32_t stage, const StepChoices& choices);

}  // namespace gptrain::fit
