// When each stage of a pipeline runs its passes in a planned step, and when it waits for the others; the simulated step
// (planner/simulate_step.h) fills it in.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "step/time_span.h"

namespace gptrain {

// A stretch of a stage's time that one pass, or the update, takes.
struct PipelineBar {
  enum class Kind : uint8_t { forward, backward, backward_weight, update } kind = Kind::forward;
  int32_t chunk = 0;
  int32_t micro_batch = -1;  // of the update none
  TimeSpan time;
};
std::string_view bar_name(PipelineBar::Kind kind);

struct PlannedStage {
  std::vector<PipelineBar> bars;
  double busy_seconds = 0;     // in bars, the update's not counted
  double waiting_seconds = 0;  // for other stages, until the global norm
  // By action of the stage's program: when what it waits for from other stages is there; 0: nothing.
  std::vector<double> not_before;
};

struct PlannedPipeline {
  std::vector<PlannedStage> stages;
  double seconds = 0;  // of the step

  // Time that stages wait for each other over the time of their passes: with equal stages and free links (p - 1) / m for
  // GPipe and 1F1B.
  double bubble() const;
};

}  // namespace gptrain
