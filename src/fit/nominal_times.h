// What ops and copies take on a usual device of a target's kind and generation: so that a plan for a named device and a run
// on it choose the same, whatever is known of the device.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "config/run_config.h"
#include "ops/target.h"
#include "step/plan_step.h"

namespace gptrain {

// The ops and collectives of an action.
double nominal_pass_seconds(const EventBlock& events, const Target& target);
// Of the actions of such a plan's units in their forward and backward passes, what is run again included.
using PassSeconds = std::map<std::pair<ActionKind, int32_t>, double>;
PassSeconds nominal_pass_seconds(const StepPlan& plan, const Target& target);
// A copy between a GPU and its host, each way by itself.
double nominal_copy_seconds(int64_t bytes, const Target& target);

}  // namespace gptrain
