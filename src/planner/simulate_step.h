// The planned step of all stages of a pipeline together (or of the one stage without): when each runs its passes, when
// it waits for the others, and what the step's time is spent on.
#pragma once

#include <vector>

#include "planner/rank_clock.h"
#include "planner/planned_pipeline.h"

namespace gptrain {

struct StageLog {
  const StepLog* log;  // borrowed
  EventTimes times;
};

// What the stages' clocks say besides.
struct SimulatedStep {
  PlannedPipeline pipeline;
  // What the longest chain of work of the step is spent on; its sum is the step.
  std::array<double, num_spendings> critical{};
  // By lane, of the mean stage: what no work hides. Of transfers between stages it is their own length, not the time
  // until the other stage has something to send.
  std::array<double, num_waited_lanes> exposed_seconds{};
  double bubble_seconds = 0;  // of the mean stage: waiting for other stages, transfers left out
  std::array<LongestWait, num_waited_lanes> longest_waits{};
};

// Plays the stages' logs beside each other. A transfer begins when both of its ends have, and the one before it on its
// way between the two stages is over; its length is the sender's. All stages meet at the global norm.
SimulatedStep simulate_step(const std::vector<StageLog>& stages);

}  // namespace gptrain
