// Plans a training step: runs the step itself on the `plan` backend, without memory or arithmetic.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "parallel/groups.h"
#include "step/step_log.h"
#include "step/training_step.h"

namespace gptrain::inline step {

// Bytes that a rank sends in a step of one of several programs.
struct ProgramTraffic {
  std::string_view name;
  LaneTraffic traffic{};
};

// The plan of one rank's step.
struct StepPlan {
  std::shared_ptr<const StepDesign> design;
  StepLog log;                                // step of the last of the design's programs
  OpTable ops{};                              // sums of the log by op
  LaneTraffic traffic{};                      // bytes that the rank sends in the log
  std::vector<ProgramTraffic> other_traffic;  // traffic of the design's other programs
  std::string warnings;                       // lines, like those of Backend::take_warnings; empty: none
  int64_t written_bytes = 0;                  // bytes of a checkpoint's tensors that this rank writes

  const StepMemory& memory() const { return design->memory; }
  OpTotals total() const;
};

// A run to plan: a config on a number of ranks, each on `target`. Refers to the config and the target.
struct PlanCase {
  const RunConfig& config;
  const Target& target;
  int64_t world_size = 1;
};

// Plans one step of a rank. `choices`: the choices for the rank's stage. `like`, and errors: see design_step.
StepPlan plan_step(const PlanCase& run, const StepChoices& choices, int64_t rank = 0,
                   const std::shared_ptr<const Program>& like = nullptr);

}  // namespace gptrain::step
