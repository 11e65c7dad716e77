// The dry run of a training step: the step itself, on the `plan` backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "parallel/groups.h"
#include "step/step_log.h"
#include "step/training_step.h"

namespace gptrain {

// What one rank's step does and takes.
struct StepPlan {
  std::shared_ptr<const StepDesign> design;
  StepLog log;
  OpTable ops{};          // of the log
  LaneTraffic traffic{};  // of the log: what the rank sends
  std::string warnings;   // lines, as of Backend::take_warnings
  int64_t written_bytes = 0;  // of a checkpoint's tensors, by this rank

  const StepMemory& memory() const { return design->memory; }
  OpTotals total() const;
};

// Runs one step of `config` for `rank` of `world_size` ranks on the `plan` backend of `target`. `choices`: those of the
// rank's stage. `like`: as of design_step.
StepPlan plan_step(const RunConfig& config, const Target& target, const StepChoices& choices, int64_t world_size = 1,
                   int64_t rank = 0, const std::shared_ptr<const Program>& like = nullptr);

}  // namespace gptrain
