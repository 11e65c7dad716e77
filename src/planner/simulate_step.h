// Simulates the planned step of all stages of a pipeline together, or of the one stage without a pipeline.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "planner/planned_pipeline.h"
#include "planner/rank_clock.h"

namespace gptrain::inline planner {

struct StageLog {
  const StepLog* log;  // borrowed
  EventTimes times;
};

struct SimulatedStep {
  PlannedPipeline pipeline;
  // Seconds of the step's critical path by Spending; they add up to the step.
  std::array<double, num_spendings> critical{};
  // Communication that no work hides, by lane; mean over stages. A transfer between stages counts for at most its own
  // length: the time until the other stage begins it belongs to the bubble.
  std::array<double, num_waited_lanes> exposed_seconds{};
  double bubble_seconds = 0;  // waiting for other stages, without transfers; mean over stages
  std::array<LongestWait, num_waited_lanes> longest_waits{};
};

struct SimulationOptions {
  // Equal events of more actions than these, those of all stages together, are played once (see RankClock).
  size_t most_in_full = 1'000'000;
  bool keeps_timeline = false;  // fills in PlannedStage::bars and not_before
};
// Simulates the stages' logs side by side. A transfer begins once both stages have begun it and the previous transfer
// in its direction between them has ended; the sender determines its length. At the global norm all stages wait for the
// last.
SimulatedStep simulate_step(const std::vector<StageLog>& stages, const SimulationOptions& options = {});

}  // namespace gptrain::planner
