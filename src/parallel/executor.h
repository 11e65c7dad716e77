// Runs a schedule: turns each action into ops of the layers, collectives and updates.
#pragma once

#include <cstddef>

#include "model/layer_call.h"
#include "model/micro_batch_source.h"
#include "model/model.h"
#include "parallel/executor_resources.h"
#include "parallel/parameter_actions.h"
#include "parallel/stage_links.h"
#include "schedule/schedule.h"

namespace gptrain::inline parallel {

class ActionObserver;

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
  void run(const Action& action, MicroBatchSource& source);
  std::byte* at(const Action& action, Operand operand) const;
  StepStatistics statistics_of(ActionKind kind) const;
  MicroBatch micro_batch(const Action& action) const;
  // Runs a layer's ops, or replays a recording of them.
  template <typename Ops>
  void compute(const Action& action, const Ops& ops);
  void upload_micro_batch(const Action& action, MicroBatchSource& source);
  // Begins a transfer between stages or waits for its end.
  void transfer(const Action& action);

  Model& model_;
  const Program& program_;
  const ExecutorResources resources_;
  ParameterActions parameters_;
  StageLinks links_;
};

}  // namespace gptrain::parallel
