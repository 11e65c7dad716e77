// Predictions of a run from the logs of its planned step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "fit/plan_world.h"
#include "ops/target.h"
#include "planner/forecast.h"
#include "planner/layout_search.h"
#include "planner/simulate_step.h"
#include "step/checkpoint_forecast.h"

namespace gptrain::inline planner {

// Seconds of one checkpoint: `cost` is the pause of the steps, `durable` the time from the beginning of the save until
// the checkpoint is complete. An asynchronous checkpoint is written beside the steps, so that its cost is smaller.
struct SaveTimes {
  double cost = 0, durable = 0;
};

struct Saving {
  // Seconds: sqrt(2 cost mtbf) (Young, CACM 1974; Daly, FGCS 2006, to first order), but at least `durable`.
  double best_interval = 0;
  double goodput = 1;  // share of the time that steps have with that interval
};
// Returns the best interval between checkpoints if a failure occurs every `mtbf_seconds`. A failure costs
// `restart_seconds` and the work since the last complete checkpoint began: half an interval on average, and the time
// during which the checkpoint was written beside the steps. A save waits for the previous one. REQUIRES: mtbf_seconds >
// 0; save.cost or save.durable > 0.
Saving best_saving(const SaveTimes& save, double mtbf_seconds, double restart_seconds);

// Returns "a100-80g in dgx-a100 nodes", or the name alone of a measured machine.
std::string machine_name(const Machine& machine);

// Returns a sentence that says that the predicted times of a machine are not gptrain's, or were never measured; else
// an empty one.
std::string step_origin(const Machine& machine);
// Returns the machine run by the published software nearest to a layout with that parallel.zero; nothing if the
// machine's own times are measured, or already are those of other software.
std::optional<Machine> published_machine(const Machine& machine, int64_t zero);

// Returns the rates at which a node writes to the storage of checkpoints and to its own drives.
StorageRates storage_rates(const ClusterProfile& cluster);
// Returns the forecast of a simulated step; `error` and `published` are left to the caller. `asynchronous`: a
// checkpoint is first copied to the host's memory or cloned, then written beside the steps.
StepForecast forecast_step(const Machine& machine, const SimulatedStep& step, int64_t world_size,
                           const CheckpointForecast& checkpoint, bool asynchronous);

// Returns the target of a run of `world_size` processes, one on each GPU, or all on one machine without GPUs.
Target planned_target(const Machine& machine, int64_t threads, int64_t world_size);
// Returns the bytes and seconds of a checkpoint. `plan` is the plan of `config`.
CheckpointForecast planned_checkpoint(const Machine& machine, const StepConfig& config, const WorldPlan& plan,
                                      int64_t world_size);

// A dry run's prediction.
struct Prediction {
  WorldPlan plan;
  SimulatedStep step;
  StepForecast forecast;
};
// Returns the prediction of a dry run: plans one rank of each kind of rank that plan_world tells apart, and simulates
// the step with the first rank of each stage. The plan may exceed the machine's memory. `forecast.published` is not
// set. THROWS Error as make_mesh and plan_world do.
Prediction predict_run(const RunConfig& config, const Machine& machine, int64_t world_size);

// Returns the main figures of a dry run, exact ones (LayoutResult::is_exact). `price`: per device-hour; 0: not known.
LayoutResult layout_result(const RunConfig& config, const Target& target, const WorldPlan& plan,
                           const StepForecast& forecast, const RunLayout& layout, double price);
// Makes the dry run of `config`, whose layout is `layout`, and returns its figures. THROWS as predict_run does.
LayoutResult predict_layout(const RunConfig& config, const Machine& machine, const RunLayout& layout, double price);

}  // namespace gptrain::planner
