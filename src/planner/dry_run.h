// What a run will cost, before it starts: the steps of all kinds of ranks on the `plan` backend, and figures made from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "fit/plan_world.h"
#include "machine/event_times.h"
#include "mesh/mesh.h"
#include "model/spec/spec.h"
#include "ops/op_table.h"
#include "ops/target.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "planner/forecast.h"
#include "planner/planned_pipeline.h"
#include "planner/recompute_forecast.h"
#include "planner/simulate_step.h"
#include "step/checkpoint_forecast.h"
#include "step/step_log.h"

namespace gptrain {

// The machine that a run is planned for.
struct PlannedMachine {
  Target target;
  std::optional<Machine> rates;  // none: nothing is known of its speed
};

// The log of a rank's step, with the times of its events.
struct TimedLog {
  int64_t rank;
  int32_t stage;
  StepLog log;
  EventTimes times;
};

// Logs to keep of the planned steps: of no rank, of the first rank of each stage, of all kinds of ranks.
enum class KeptLogs : uint8_t { none, of_stages, all };

struct PlannedRun {
  int64_t world_size = 1;
  WorldPlan world = {};
  std::vector<TimedLog> logs = {};
  SimulatedStep step = {};  // of the logs of stages; empty without logs
};
// Plans a step of all ranks and simulates it, where logs are kept.
PlannedRun plan_run(const RunConfig& config, const PlannedMachine& machine, int64_t world_size, KeptLogs kept);

// A rate to reckon the run's length with, and where it comes from ("given", "measured in runs/x").
struct TokenRate {
  double tokens_per_second;
  std::string origin;
};

// One training source and how often the run will have gone through it.
struct SourceForecast {
  std::string path;
  double share;                  // of the samples
  std::optional<double> epochs;  // unknown where the files are not there
};

// The ranks that are planned for, and what rank 0 sends in a step.
struct WorldForecast {
  Mesh mesh{{{1, 1, 1, 1, 1}}, 1};
  LaneTraffic traffic{};
  int64_t largest_rank = 0;  // the one whose memory is shown
};

// One stage of a pipeline.
struct StageForecast {
  int64_t layers = 0;
  int64_t peak_bytes = 0;  // of the rank that takes the most
  int64_t in_flight = 0;   // as StagePlan has it
  int64_t offloaded = 0;   // layers whose saved activations wait on the host
};

struct DryRun {
  RunConfig config;
  Target target;
  ModelSpec spec;
  MemoryPlan memory;  // of the rank that takes the most
  OpTable ops;        // of one step, all ranks
  CheckpointForecast checkpoint;
  std::optional<TokenRate> rate;
  std::vector<SourceForecast> sources;
  WorldForecast world = {};
  HostMemoryUse on_host = {};  // of the node that takes the most
  std::vector<StageForecast> stages = {};        // one without a pipeline
  std::optional<PlannedPipeline> pipeline = {};  // where the target has rates
  std::optional<StepForecast> forecast = {};     // likewise
  std::optional<RecomputeForecast> recomputation = {};  // where it is optimal
  std::string warnings = {};  // of the ops, lines
  std::string shortage = {};  // what is missing and would help (fit/shortage.h); empty if the plan fits
  double price = 0;           // of a device-hour; 0: not known
};

// The figures of a planned run. `storage`: the rates at which checkpoints are written. Rates of tokens, sources and price
// are left to the caller, but for a predicted rate. Plans other settings where the run does not fit, one after the other: drop the logs before, so that
// no two plans are kept at a time.
DryRun make_dry_run(const RunConfig& config, const PlannedMachine& machine, const PlannedRun& run,
                    const StorageRates& storage);

}  // namespace gptrain
