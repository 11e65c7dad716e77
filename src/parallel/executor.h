// Plays a schedule: turns each action into ops of the units, collectives and updates.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "model/micro_batch.h"
#include "model/units.h"
#include "parallel/memory.h"
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

// Start addresses of the arenas that actions work on.
struct ArenaMemory {
  std::byte* activations = nullptr;
  std::byte* data = nullptr;
  std::byte* gradients = nullptr;
  StepState* state = nullptr;
};

// Borrows everything it is given. `update` may be null for schedules without norm and updates.
class Executor {
 public:
  Executor(Units& units, const ParameterLayout& layout, const Schedule& schedule, ArenaMemory arenas,
           Workspace& workspace, Backend& backend, Communicator& data_group, UpdateRule* update);

  // One pass over the schedule. Micro-batches come from `source` in order, one per first forward. `observer` may be
  // null.
  void play(MicroBatchSource& source, ActionObserver* observer);

 private:
  void run(const Action& action, MicroBatchSource& source);

  Units& units_;
  const ParameterLayout& layout_;
  const Schedule& schedule_;
  SlotMap slots_;
  ArenaMemory arenas_;
  Workspace& workspace_;
  Backend& backend_;
  Communicator& data_group_;
  UpdateRule* update_;
};

}  // namespace gptrain
