// From the logs of a planned step to a forecast of the run.
#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "ops/target.h"
#include "planner/simulate_step.h"
#include "report/forecast.h"
#include "train/plan_step.h"

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

// `checkpoint_bytes`: of the whole run's, which all ranks write together, each its part; `asynchronous`: beside the
// steps, from a copy in the host's memory.
StepForecast forecast_step(const Machine& machine, const SimulatedStep& step, int64_t world_size,
                           int64_t checkpoint_bytes, bool asynchronous);

// One process on each device of the machine.
Target planned_target(const Machine& machine);

// What a dry run says: all kinds of ranks planned, and the step of the first of each stage simulated.
struct Prediction {
  WorldPlan plan;
  SimulatedStep step;
  StepForecast forecast;
};
Prediction predict_run(const RunConfig& config, const Machine& machine, int64_t world_size);

}  // namespace gptrain
