// When each pass of a pipeline schedule begins and ends, by given times of passes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/pipeline/pipeline.h"

namespace gptrain {

// In seconds, or any other unit: results are in the same. `backward` is the whole of it.
struct PassTimes {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
};

struct PipelineTimes {
  std::vector<PassTimes> chunks;  // of each chunk; or one, for all
  // From the end of a pass to where another stage has what it made. Stages compute meanwhile, and links carry any
  // number of transfers at once.
  double transfer = 0;
};

struct PassTime {
  double start = 0;
  double end = 0;
};

struct StageTimes {
  std::vector<PassTime> passes;  // in the order of the list; those that could run
  double busy = 0;
  double idle = 0;  // from 0 to the makespan
  // The most (chunk, micro-batch) pairs that had a forward and not yet the pass that makes their weight gradients.
  int32_t most_in_flight = 0;
  // The same, but counted to the pass that makes their input gradients: less where backwards are split.
  int32_t most_awaiting_gradient = 0;
};

struct PipelineSimulation {
  std::vector<StageTimes> stages;
  double makespan = 0;
  double bubble = 0;    // idle over busy time, of all stages together
  std::string stalled;  // a stage and pass that wait forever and what for; empty if all passes ran
};

// Plays the lists: a stage runs its passes in order, each as soon as it has what it needs. A forward needs the forward
// of the chunk before; a backward, or backward_input, needs its own forward and the gradient of the chunk after;
// backward_weight needs its backward_input. Passes must be in the shape's range and on the stages that hold their
// chunks.
PipelineSimulation simulate_passes(const PipelineShape& shape, const PipelineSchedule& schedule,
                                   const std::vector<std::vector<Pass>>& stages, const PipelineTimes& times);

}  // namespace gptrain
