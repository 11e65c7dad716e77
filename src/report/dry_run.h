// What a run will cost, before it starts: made from what a step wrote down on the `plan` backend.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/int128.h"
#include "config/run_config.h"
#include "model/spec/spec.h"
#include "ops/target.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "step/checkpoint_forecast.h"
#include "planner/forecast.h"
#include "planner/planned_pipeline.h"
#include "planner/recompute_forecast.h"
#include "step/step_log.h"

namespace gptrain {

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

struct DryRunInput {
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

// For people: tables in plain text.
std::string dry_run_text(const DryRunInput& input);
// For scripts: one JSON object, keys with units. FLOPs beyond 2^63 are written as floating point.
std::string dry_run_json(const DryRunInput& input);
// The part of the JSON that a real run repeats in OUT/run.json: parameters, and the bytes of each arena
// ("weights_bytes", ..., "peak_bytes").
std::string memory_json(const RunConfig& config, const ModelSpec& spec, const MemoryPlan& memory);

}  // namespace gptrain
