// The timeline of a pipeline's planned step; simulate_step (planner/simulate_step.h) fills it in.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "step/time_span.h"

namespace gptrain::inline planner {

// One pass of a stage, or its update.
struct PipelineBar {
  enum class Kind : uint8_t { forward, backward, backward_weight, update } kind = Kind::forward;
  int32_t chunk = 0;
  int32_t micro_batch = -1;  // -1 for the update
  TimeSpan time;
};
std::string_view bar_name(PipelineBar::Kind kind);

struct PlannedStage {
  std::vector<PipelineBar> bars;
  double busy_seconds = 0;     // time in passes
  double waiting_seconds = 0;  // time spent waiting for other stages, the global norm included
  // By action of the stage's program: time at which the data from another stage has arrived; 0: the action needs none.
  std::vector<double> not_before;
};

struct PlannedPipeline {
  std::vector<PlannedStage> stages;
  double seconds = 0;  // length of the step

  // Returns the stages' waiting time over the time of their passes: (p - 1) / m for GPipe and 1F1B with p equal stages,
  // m micro-batches and infinitely fast links.
  double bubble() const;
};

}  // namespace gptrain::planner
