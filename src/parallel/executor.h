// Runs a schedule: turns each action into ops of the layers, collectives and updates.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/micro_batch.h"
#include "model/model.h"
#include "parallel/away_gradients.h"
#include "parallel/compressed_reducer.h"
#include "parallel/groups.h"
#include "parallel/micro_batch_uploads.h"
#include "parallel/offload_lanes.h"
#include "parallel/parameter_exchange.h"
#include "parallel/parameters.h"
#include "parallel/program.h"
#include "parallel/stage_links.h"
#include "parallel/weight_reads.h"
#include "schedule/schedule.h"

namespace gptrain::inline parallel {

// The optimizer's actions in a step. Implemented in src/optim. Called by the thread that plays the schedule.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Computes the global gradient norm, and from it the clipping factor and whether the step is skipped. Collective.
  virtual void norm() = 0;
  // Updates one unit's weights, or begins to.
  virtual void update(int64_t unit) = 0;
  // Takes note of the sum of a unit's gradients, in ParameterStore::gradients_piece, if sums are away before the norm.
  virtual void measure(int64_t /*unit*/) {}
  // Waits until the unit's last update is over. Called before ops read its weights or write its gradients.
  virtual void await_update(int64_t /*unit*/) {}
};

// Sees every action before and after it runs. A plan uses it to count ops, a profile to time them.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  // Returns false to skip the action, which has no after() then. A plan skips actions equal to one it has counted.
  virtual bool before(const Action& action) = 0;
  virtual void after(const Action& action) = 0;
};

// Memory and services that a rank's executors use. The caller owns all of them.
struct ExecutorResources {
  ArenaStarts arenas = {};
  StepState* state = nullptr;  // device
  StepStatistics statistics = {};
  Workspace* workspace = nullptr;
  Backend* backend = nullptr;
  RankGroups* groups = nullptr;
  UnitTickets* gathers = nullptr;                     // by unit: its last gather of weights
  WeightReads* weight_reads = nullptr;                // null unless weights are away
  AwayGradients* away_gradients = nullptr;            // null unless gradients are away
  const AccumulatedGradients* accumulated = nullptr;  // null if gradients are kept in f32
  const GradientCompression* compression = nullptr;   // null if gradients are summed as they are
  MicroBatchUploads* uploads = nullptr;               // null if the backend's memory is host memory
  OffloadLanes* offloads = nullptr;                   // null if the schedule offloads nothing
};

// Runs one program. Used by the thread that calls the backend.
class Executor {
 public:
  // Borrows all arguments. `update` may be null if the schedule has no norm and no updates.
  Executor(Model& model, const Program& program, const ParameterStore& parameters, const ExecutorResources& resources,
           UpdateRule* update);

  // Runs the schedule once. Takes one micro-batch from `source` for each load action. `observer` may be null.
  // Collective over the groups that its actions use. If it throws and there are several stages, it aborts all lanes of
  // the rank.
  void play(MicroBatchSource& source, ActionObserver* observer);

  // Returns the arguments of the layers' ops for an action of the program's schedule.
  LayerCall call_of(const Action& action) const;

 private:
  void play_all(MicroBatchSource& source, ActionObserver* observer);
  void await_updates(const Action& action);
  void gather(const Action& action);
  void load_sum(const Action& action);
  void run(const Action& action, MicroBatchSource& source);
  std::byte* at(const Action& action, Operand operand) const;
  StepStatistics statistics_of(ActionKind kind) const;
  MicroBatch micro_batch(const Action& action) const;
  // Runs a layer's ops, or replays a recording of them.
  template <typename Ops>
  void compute(const Action& action, const Ops& ops);
  void upload_micro_batch(const Action& action, MicroBatchSource& source);
  // A unit of parameters that an action moves, and its memory in the action's operands.
  struct Part {
    int64_t unit;
    std::byte *weights, *whole_gradients, *narrow_gradients;
  };
  // Returns the parameters of a part.
  UnitParameters whole(const Part& part) const {
    return parameters_.whole(part.unit, part.weights, part.whole_gradients);
  }
  // Returns the part of the action's unit, and that of its experts, which lies behind it, if they are a unit of their
  // own.
  Part own_part(const Action& action) const;
  std::optional<Part> experts_part(const Action& action) const;
  // Calls body(part) for both.
  template <typename Body>
  void for_each_part(const Action& action, const Body& body) const;
  // Returns the unit with the matrix of the head.
  int64_t matrix_unit() const;
  ParameterExchange::Gradients gradients_of(const Part& part) const {
    return {whole(part).gradients, part.narrow_gradients};
  }
  // Begins the sums of an action, or waits for them.
  void sum(const Action& action);
  void await_gradients(const Part& part, int32_t micro_batch);
  void keep_gradients(const Part& part, int32_t micro_batch);
  void sum_tied();
  // Begins a transfer between stages or waits for its end.
  void transfer(const Action& action);

  Model& model_;
  const Program& program_;
  const ParameterStore& parameters_;
  const ExecutorResources resources_;
  ParameterExchange exchange_;
  StageLinks links_;
  UpdateRule* update_;
  std::vector<int32_t> gathered_units_;  // in the order of the program's gathers
};

}  // namespace gptrain::parallel
