// The choices of a config whose section `memory` determines them without a search.
#pragma once

#include <cstdint>

#include "config/run_config.h"
#include "ops/target.h"
#include "schedule/layer_choices.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// Returns true if this value recomputes blocks regardless of memory; "optimal" recomputes only to fit its budget.
constexpr bool backward_recomputes(RecomputeKind kind) {
  return kind != RecomputeKind::none && kind != RecomputeKind::optimal;
}

// Returns the config with this number of blocks offloaded on each stage.
RunConfig with_offloaded_blocks(RunConfig config, int64_t blocks);

// Returns the choices for all units of the model. REQUIRES: memory.recompute is not "optimal", and
// MemoryConfig::offload neither "optimal" nor "hidden".
UnitChoices fixed_units(const RunConfig& config);

// Returns the choices that layers read.
LayerChoices layer_choices(const MemoryConfig& memory, const Target& target);

// Returns the choices of a step: those for its units, and all others, which follow from the section `memory`.
StepChoices choices_with(const MemoryConfig& memory, const Target& target, UnitChoices units);

// Plans a step of a rank whose config has fixed choices. REQUIRES: the same as fixed_units.
StepPlan plan_fixed(const PlanCase& run, int64_t rank);

}  // namespace gptrain::fit
