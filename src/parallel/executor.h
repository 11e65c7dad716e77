// Plays a schedule: turns each action into ops of the layers, collectives and updates.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/micro_batch.h"
#include "model/model.h"
#include "parallel/groups.h"
#include "parallel/micro_batch_uploads.h"
#include "parallel/offload_lanes.h"
#include "parallel/parameter_exchange.h"
#include "parallel/parameters.h"
#include "parallel/program.h"
#include "parallel/stage_links.h"
#include "schedule/schedule.h"

namespace gptrain {

// What the optimizer does in a step. Implemented in src/optim.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual void norm() = 0;                // global gradient norm, clipping, the decision to skip
  virtual void update(int64_t unit) = 0;  // one unit's weights
};

// Sees every action before it runs: the plan counts, a profile times.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  // False: the action is not run (the plan has counted an equal one).
  virtual bool before(const Action& action) = 0;
  virtual void after(const Action& action) = 0;
};

// Where the executors of a rank work; all of it is the caller's.
struct Workplace {
  std::array<std::byte*, num_memory_classes> arenas{};
  StepState* state = nullptr;  // device
  Workspace* workspace = nullptr;
  Backend* backend = nullptr;
  RankGroups* groups = nullptr;
  UnitTickets* gathers = nullptr;         // by unit
  const KeptGradients* kept = nullptr;   // null where gradients are kept as they are made
  MicroBatchUploads* uploads = nullptr;  // null where the backend's memory is the host's
  OffloadLanes* offloads = nullptr;       // null where the schedule has none
};

// Borrows everything it is given. `update` may be null for schedules without norm and updates.
class Executor {
 public:
  Executor(Model& model, const Program& program, const ParameterStore& parameters, const Workplace& place,
           UpdateRule* update);

  // One pass over the schedule. Micro-batches come from `source` in order, one per first forward. `observer` may be
  // null.
  void play(MicroBatchSource& source, ActionObserver* observer);

  // What the layers' ops of an action of the schedule work on.
  LayerCall call_of(const Action& action) const;

 private:
  void play_all(MicroBatchSource& source, ActionObserver* observer);
  void run(const Action& action, MicroBatchSource& source);
  std::byte* at(const Action& action, Operand operand) const;
  MicroBatch micro_batch(const Action& action) const;
  // Runs a layer's ops, or plays them as they were recorded.
  template <typename Ops>
  void compute(const Action& action, const Ops& ops);
  void upload_micro_batch(const Action& action, MicroBatchSource& source);
  // The parameters of the unit, which are those that the action works on.
  UnitParameters whole(int64_t unit, const Action& action) const;
  ParameterExchange::Gradients gradients_of(const Action& action) const;
  // Begins or ends a transfer between stages.
  void transfer(const Action& action);

  Model& model_;
  const Program& program_;
  const ParameterStore& parameters_;
  const Workplace place_;
  ParameterExchange exchange_;
  StageLinks links_;
  UpdateRule* update_;
};

}  // namespace gptrain
