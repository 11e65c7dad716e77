// Makes the choices that a config's section `memory` asks for, once for each pipeline stage.
#pragma once

#include <cstdint>
#include <optional>

#include "config/run_config.h"
#include "ops/target.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// Makes the choices for the ranks of a stage. `activation_bytes`: bytes for activations if memory.activation_budget is
// "fit", as agreed by the ranks of the stage; none: the bytes that the target leaves (activation_headroom). If "fit" is
// not possible, returns the choices with the least memory. THROWS Error(usage) if memory.activation_budget is a number
// and too small; the message names the least possible one.
StepChoices choose_step(const PlanCase& run, int32_t stage, std::optional<int64_t> activation_bytes = {});

// Makes the choices that take the least memory of those that choose_step may make for a stage. Found much sooner than
// the fastest ones that fit. THROWS as choose_step.
StepChoices smallest_step(const PlanCase& run, int32_t stage);

// Plans a step of `rank` with the choices for its stage.
StepPlan plan_rank(const PlanCase& run, int64_t rank = 0);

}  // namespace gptrain::fit
