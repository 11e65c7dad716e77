// Memory and services of a rank's executors, all of which the caller owns.
#pragma once

#include "model/record.h"
#include "model/step_statistics.h"
#include "ops/backend.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "parallel/parameter_exchange.h"

namespace gptrain::inline parallel {

class AwayGradients;
class MicroBatchUploads;
class OffloadLanes;
class WeightAverage;
class WeightReads;
struct GradientCompression;

struct ExecutorResources {
  ArenaStarts arenas = {};
  StepState* state = nullptr;  // device
  StepStatistics statistics = {};
  float* amax_forecast = nullptr;  // see LayerCall
  Workspace* workspace = nullptr;
  Backend* backend = nullptr;
  RankGroups* groups = nullptr;
  UnitTickets* gathers = nullptr;                     // by unit: its last gather of weights
  WeightReads* weight_reads = nullptr;                // null unless weights are away
  AwayGradients* away_gradients = nullptr;            // null unless gradients are away
  const AccumulatedGradients* accumulated = nullptr;  // null if gradients are accumulated in f32
  const GradientCompression* compression = nullptr;   // null if gradients are summed as they are
  bool sums_over_islands = false;                     // gradients are summed over all islands, not only in this one
  bool sums_right = false;                            // if factors alternate: the step sums right factors
  bool is_alone = false;                              // units of coded gradients are not summed
  WeightAverage* average = nullptr;                   // null unless ranks or islands train alone
  MicroBatchUploads* uploads = nullptr;               // null if the backend's memory is host memory
  OffloadLanes* offloads = nullptr;                   // null if the schedule offloads nothing
};

}  // namespace gptrain::parallel
