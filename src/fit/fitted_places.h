// Places chosen by memory.offload_optimizer = "fit": on drives as far as memory is short.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// Returns the section `memory` with definite places of optimizer state and weights instead of "fit": the optimizer
// state of as few of the last units on disk as the device's memory needs, as each takes time; if that of all units is
// not enough, and memory.offload_parameters is "fit", too, the weights as well. `units`: the choices of the stage's
// units that take the least memory. Returns the section as it is if it has no "fit".
MemoryConfig fitted_places(const PlanCase& run, int32_t stage, const UnitChoices& units);

}  // namespace gptrain::fit
