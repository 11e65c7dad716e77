// Simulates a pipeline schedule: computes the begin and end of each pass from given times of passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/pipeline/pipeline.h"

namespace gptrain::inline schedule {

// Times in seconds or any other unit; results are in the same unit. `backward` is a whole, not split, backward pass.
struct PassTimes {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
};

struct PipelineTimes {
  std::vector<PassTimes> chunks;  // one for each chunk, or a single one for all
  // Time of a transfer, from the end of a pass to the arrival of its output on another stage. Stages compute meanwhile,
  // and links carry any number of transfers at once.
  double transfer = 0;
};

struct PassTime {
  double start = 0;
  double end = 0;
};

struct StageTimes {
  std::vector<PassTime> passes;  // in the order of the list; shorter than the list if the stage is stalled
  double busy = 0;
  double idle = 0;  // makespan - busy
  // Largest number of (chunk, micro-batch) pairs between their forward and the pass that computes weight gradients.
  int32_t most_in_flight = 0;
  // Largest number of these pairs between their forward and the pass that computes input gradients. Less than
  // most_in_flight if backward passes are split.
  int32_t most_awaiting_gradient = 0;
};

struct PipelineSimulation {
  std::vector<StageTimes> stages;
  double makespan = 0;
  double bubble = 0;    // idle time over busy time, each summed over all stages
  std::string stalled;  // text about a pass that waits for ever and the pass it waits for; empty if all passes ran
};

// Simulates the lists: a stage runs its passes in order, each as soon as its inputs exist. A forward needs the forward
// of the chunk before. A backward or backward_input needs its own forward and the gradient of the chunk after. A
// backward_weight needs its backward_input.
// REQUIRES: passes are in the shape's range and on the stages that hold their chunks.
PipelineSimulation simulate_passes(const PipelineShape& shape, const PipelineSchedule& schedule,
                                   const std::vector<std::vector<Pass>>& stages, const PipelineTimes& times);

}  // namespace gptrain::schedule
