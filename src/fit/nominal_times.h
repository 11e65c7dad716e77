// Times of ops and copies at nominal rates of the target's kind and generation of device. Measured rates are not used,
// so that a plan for a named device and a run on it make the same choices.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "config/run_config.h"
#include "ops/target.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

// Returns the time of an action's ops and collectives in seconds.
double nominal_pass_seconds(const EventBlock& events, const Target& target);
// Seconds by kind of action and unit.
using PassSeconds = std::map<std::pair<ActionKind, int32_t>, double>;
// Returns the times of the forward, backward and recomputation actions of the second micro-batch. REQUIRES: the plan
// has at least two micro-batches (with_few_micro_batches).
PassSeconds nominal_pass_seconds(const StepPlan& plan, const Target& target);
// Returns the time of the events' reads and writes of one drive in seconds. Both go on at the same time.
double nominal_disk_seconds(const EventBlock& events);
// Returns the time of a copy between a GPU and its host in seconds. Copies in opposite directions do not share the
// rate.
double nominal_copy_seconds(int64_t bytes, const Target& target);

}  // namespace gptrain::fit
