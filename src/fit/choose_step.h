// The choices that a config's section `memory` asks for, made once for each pipeline stage.
#pragma once

#include <cstdint>
#include <optional>

#include "config/run_config.h"
#include "ops/target.h"
#include "schedule/step_choices.h"
#include "step/plan_step.h"

namespace gptrain {

// Makes the choices for the ranks of a stage. `room`: bytes for activations that the ranks of the stage have agreed on
// where memory.activation_budget is "fit"; none: what the target leaves. Where it leaves too little, the least memory is
// chosen. Error(usage): memory.activation_budget is too small, and by how much.
StepChoices choose_step(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage,
                        std::optional<int64_t> room = {});

// The plan of a rank with the choices for its stage.
StepPlan plan_rank(const RunConfig& config, const Target& target, int64_t world_size = 1, int64_t rank = 0);

}  // namespace gptrain
