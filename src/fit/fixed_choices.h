// The choices of a config whose section `memory` leaves nothing to be chosen.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain {

// Whether blocks are run again as a rule. "optimal" keeps all of them where it can.
constexpr bool backward_runs_again(RecomputeKind kind) {
  return kind != RecomputeKind::none && kind != RecomputeKind::optimal;
}

// The choices for all units of the model. REQUIRES: memory.recompute is not "optimal", and offload neither "optimal" nor "hidden".
UnitChoices fixed_units(const RunConfig& config);

// The choices for units with everything else that the section `memory` sets.
StepChoices choices_with(const RunConfig& config, const Target& target, UnitChoices units);

// The plan of a rank whose config has fixed choices. REQUIRES: as fixed_units.
StepPlan plan_fixed(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank);

}  // namespace gptrain
