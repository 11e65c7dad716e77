// Training steps over ranks that are threads of the test, and their results put together again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "step/plan_step.h"
#include "step/training_step.h"

namespace gptrain::testing {

// Whole tensors by "weight/NAME", "exp_avg/NAME" and so on, in the order of the global tensor.
using GlobalState = std::map<std::string, std::vector<float>>;

struct Outcome {
  GlobalState state;
  std::vector<double> losses, norms;
  std::string torn;  // a tensor of which two ranks hold different bits; empty if there is none
};

// What a rank has while it runs.
struct RankContext {
  RankGroups& groups;
  TrainingStep& step;
  const StepPlan& plan;
  World& world;
};

// What a test puts between a rank and its backend or groups, or around its steps; called on the rank's thread.
struct Wrapping {
  std::function<std::unique_ptr<Backend>(int64_t rank, Backend&)> backend = {};
  // Of the groups that lanes work in.
  std::function<std::unique_ptr<Communicator>(int64_t rank, LaneKind, GroupKind, std::unique_ptr<Communicator>)>
      group = {};
  std::function<std::unique_ptr<Backend>(int64_t rank)> device = {};  // without it, a CPU backend of one thread
  const UnitChoices* choices = nullptr;  // of all stages' units; null: the config's
  std::function<void(RankContext&)> before = {}, after = {};  // the steps that train_on_ranks takes
};

// Where ranks get their micro-batches, and how many targets of a step's global batch count.
struct StepBatches {
  std::function<std::unique_ptr<MicroBatchSource>(const RankContext&)> make;
  std::function<int64_t(int step)> counted_targets;  // steps from 0
};

// Runs `body` on every rank of a world of threads, each on a backend of its own, with initial weights, or with those of
// `start` and zero moments. The first exception of a rank is thrown again, after all have ended.
void on_ranks(const RunConfig& config, int64_t world_size, const GlobalState* start, const Wrapping& wrapping,
              const std::function<void(RankContext&)>& body);

// The state that all ranks hold after `steps` steps from `first_sample` on; each element from the rank that would write
// it to a checkpoint. Throws std::logic_error if an element has no such rank or several.
Outcome train_on_ranks(const RunConfig& config, int64_t world_size, int steps, const GlobalState* start = nullptr,
                       int64_t first_sample = 0, const Wrapping& wrapping = {});
// The same on given micro-batches.
Outcome train_on_batches(const RunConfig& config, int64_t world_size, int steps, const GlobalState* start,
                         const StepBatches& batches, const Wrapping& wrapping = {});

}  // namespace gptrain::testing
