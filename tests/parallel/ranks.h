// Trains over ranks that are threads of the test, and combines their results.
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
  std::string torn;  // first tensor of which two ranks hold different bits; empty: none
};

// A running rank's objects.
struct RankContext {
  RankGroups& groups;
  TrainingStep& step;
  const StepPlan& plan;
  World& world;
};

// A test's hooks between a rank and its backend or groups, or around its steps. Called on the rank's thread.
struct Wrapping {
  std::function<std::unique_ptr<Backend>(int64_t rank, Backend&)> backend = {};
  // Wraps the groups in which lanes work.
  std::function<std::unique_ptr<Communicator>(int64_t rank, LaneKind, GroupKind, std::unique_ptr<Communicator>)> group =
      {};
  std::function<std::unique_ptr<Backend>(int64_t rank)> device = {};  // null: a CPU backend of one thread
  const UnitChoices* choices = nullptr;                       // choices for the units of all stages; null: the config's
  std::vector<Statistic> statistics = {};                     // beside those of the config
  std::function<void(RankContext&)> before = {}, after = {};  // run before and after the steps of train_on_ranks
};

// Source of the ranks' micro-batches, and the number of targets that count in a step's global batch.
struct StepBatches {
  std::function<std::unique_ptr<MicroBatchSource>(const RankContext&)> make;
  std::function<int64_t(int step)> counted_targets;  // steps count from 0
};

// Runs `body` on every rank of a world of threads, each on its own backend, with initial weights, or with those of
// `start` and zero moments. Rethrows the first exception after all ranks have ended.
void on_ranks(const RunConfig& config, int64_t world_size, const GlobalState* start, const Wrapping& wrapping,
              const std::function<void(RankContext&)>& body);

// Returns the state after `steps` steps from `first_sample` on, each element from the rank that would write it to a
// checkpoint. Throws std::logic_error if no rank or several would.
Outcome train_on_ranks(const RunConfig& config, int64_t world_size, int steps, const GlobalState* start = nullptr,
                       int64_t first_sample = 0, const Wrapping& wrapping = {});
// Does the same with given micro-batches.
Outcome train_on_batches(const RunConfig& config, int64_t world_size, int steps, const GlobalState* start,
                         const StepBatches& batches, const Wrapping& wrapping = {});

}  // namespace gptrain::testing
