// The dry run: memory, FLOPs, traffic and time of a run, from a step of each kind of rank on the `plan` backend.
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
#include "planner/faster_layout.h"
#include "planner/forecast.h"
#include "planner/link_needs.h"
#include "planner/planned_pipeline.h"
#include "planner/recompute_forecast.h"
#include "planner/simulate_step.h"
#include "step/checkpoint_forecast.h"
#include "step/step_log.h"

namespace gptrain::inline planner {

struct PlannedMachine {
  Target target;
  std::optional<Machine> rates;  // empty if the machine's speed is unknown
};

// A rank's planned step and the times of its events.
struct TimedLog {
  int64_t rank;
  int32_t stage;
  StepLog log;
  EventTimes times;
};

// Logs of planned steps to keep: none, those of each stage's first rank, or one for each kind of rank.
enum class LoggedRanks : uint8_t { none, of_stages, all };

struct PlannedRun {
  int64_t world_size = 1;
  WorldPlan world = {};
  std::vector<TimedLog> logs = {};
  SimulatedStep step = {};       // empty if no logs are kept
  LinkBytes links = {};          // largest of the first ranks of stages; 0 if no logs are kept
  PublishedStep published = {};  // see published_machine
  // Ops of attention that gptrain's own kernels compute, with the first reason, and the seconds that they add to the
  // step.
  OwnAttention own_attention = OwnAttention::no;
  double own_attention_seconds = 0;
};
// Plans a step of all ranks. If logs are kept, also simulates the step, with the first rank of each stage.
// `keeps_timeline`: see SimulationOptions.
PlannedRun plan_run(const RunConfig& config, const PlannedMachine& machine, int64_t world_size, LoggedRanks logged,
                    bool keeps_timeline = false);

// The rate from which the run's duration is computed.
struct TokenRate {
  double tokens_per_second;
  std::string origin;  // "given", "predicted", "measured in runs/x"
};

struct SourceForecast {
  std::string path;
  double share;                  // source's samples over all samples
  std::optional<double> epochs;  // passes of the run through the source; empty if its files are missing
};

struct WorldForecast {
  Mesh mesh{{{1, 1, 1, 1}}, 1};
  LaneTraffic traffic{};                           // sent by rank 0 in a step
  std::vector<ProgramTraffic> other_traffic = {};  // sent by it in steps of other programs
  int64_t largest_rank = 0;                        // rank whose memory is shown: it takes the most
};

struct StageForecast {
  int64_t layers = 0;
  int64_t peak_bytes = 0;  // device memory of the stage's largest rank
  int64_t in_flight = 0;   // see StagePlan
  int64_t offloaded = 0;   // layers whose saved activations are offloaded to the host
};

struct DryRun {
  RunConfig config;
  Target target;
  ModelSpec spec;
  MemoryPlan memory;  // planned memory of the largest rank
  OpTable ops;        // ops of one step, summed over all ranks
  CheckpointForecast checkpoint;
  std::optional<TokenRate> rate;
  std::vector<SourceForecast> sources;
  WorldForecast world = {};
  HostMemoryUse on_host = {};                           // memory of the node that needs the most
  std::vector<StageForecast> stages = {};               // one element if there is no pipeline
  std::optional<PlannedPipeline> pipeline = {};         // set for a pipeline on a machine with rates
  std::optional<StepForecast> forecast = {};            // set if the machine has rates
  LinkBytes links = {};                                 // PlannedRun::links; set with `forecast`
  std::vector<LinkNeed> link_needs = {};                // set with `forecast` if optimizer state is away
  double sustained_flops = 0;                           // FLOP/s of a rank's products; set with link_needs
  std::optional<RecomputeForecast> recomputation = {};  // set if memory.recompute is "optimal"
  std::string warnings = {};                            // lines, from rank 0's ops
  std::string shortage = {};                // missing memory and remedies (fit/shortage.h); empty if the plan fits
  double price = 0;                         // per device-hour; 0: not known
  std::optional<FasterLayout> faster = {};  // set if the step is slower than one that a quick search found
};

// Returns the figures of a planned run. `storage`: rates at which checkpoints are written. The caller sets `sources`,
// `price` and `faster`, and replaces `rate`, which is the predicted one, if it knows a better one. If the run does not
// fit, other settings are planned one by one: free run.logs first, so that only one plan is in memory at a time.
DryRun make_dry_run(const RunConfig& config, const PlannedMachine& machine, const PlannedRun& run,
                    const StorageRates& storage);

}  // namespace gptrain::planner
