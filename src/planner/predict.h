// From the logs of a planned step to a forecast of the run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "fit/plan_world.h"
#include "ops/target.h"
#include "planner/simulate_step.h"
#include "step/checkpoint_forecast.h"
#include "planner/forecast.h"
#include "planner/layout_search.h"

namespace gptrain {

// Of one checkpoint: how long steps wait for it, and how long it takes until it is whole. An asynchronous one is
// written beside the steps.
struct SaveTimes {
  double cost = 0, durable = 0;
};

// A failure comes every `mtbf_seconds` and costs `restart_seconds` and what came after the beginning of the last whole
// checkpoint: half an interval on average, and the time to write beside steps. A save waits for the one before.
struct Saving {
  double best_interval = 0;  // sqrt(2 cost mtbf): Young, CACM 1974; Daly, FGCS 2006, to first order
  double goodput = 1;        // share of the time that steps have, with that interval
};
Saving best_saving(const SaveTimes& save, double mtbf_seconds, double restart_seconds);

// "a100-80g in dgx-a100 nodes"; of one machine its name alone.
std::string machine_name(const Machine& machine);

StorageRates storage_rates(const ClusterProfile& cluster);
// `asynchronous`: the checkpoint is written beside the steps, from a copy in the host's memory.
StepForecast forecast_step(const Machine& machine, const SimulatedStep& step, int64_t world_size,
                           const CheckpointForecast& checkpoint, bool asynchronous);

// Of `world_size` processes, one on each device, or all on a machine without GPUs.
Target planned_target(const Machine& machine, const RunConfig& config, int64_t world_size);
// Of the plan of that config.
CheckpointForecast planned_checkpoint(const Machine& machine, const RunConfig& config, const WorldPlan& plan,
                                      int64_t world_size);

// What a dry run says: all kinds of ranks planned, and the step of the first of each stage simulated.
struct Prediction {
  WorldPlan plan;
  SimulatedStep step;
  StepForecast forecast;
};
Prediction predict_run(const RunConfig& config, const Machine& machine, int64_t world_size);

// What a dry run says, in short.
LayoutResult layout_result(const RunConfig& config, const Target& target, const WorldPlan& plan,
                           const StepForecast& forecast, const RunLayout& layout, double price);
// The dry run of a layout's config.
LayoutResult predict_layout(const RunConfig& config, const Machine& machine, const RunLayout& layout, double price);

}  // namespace gptrain
