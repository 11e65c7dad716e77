// Plays a schedule: turns each action into ops of the units, collectives and updates.
#pragma once

#include <cstdint>
#include <vector>

#include "model/micro_batch.h"
#include "model/units.h"
#include "parallel/groups.h"
#include "parallel/memory.h"
#include "parallel/micro_batch_uploads.h"
#include "parallel/parameters.h"
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
  StepState* state = nullptr;
  std::byte* fp8_weights = nullptr;
};

// Ranges of a unit's gradients that are parts of a sum over a group of tensor ranks, besides the data axis (see
// NormUse and TensorShard::replicas_first).
struct PartialSum {
  int64_t unit;
  int64_t first;  // elements from the unit's start
  int64_t count;
  GroupKind group;
};
std::vector<PartialSum> partial_sums(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                     const ParameterLayout& layout, bool sequence);

// Begins to gather a unit's weights from this rank's piece and the others' (ZeRO 1 to 3): those in the compute dtype,
// and where that is not f32 the norms' masters. The ticket is of both.
Lane::Ticket begin_gather(const ParameterStore& parameters, int64_t unit, RankGroups& groups,
                                      Backend& backend);

// Tickets of gathers that outlive a step: weights updated in one are awaited in the next, or in an evaluation.
using UnitTickets = std::vector<Lane::Ticket>;

// Borrows everything it is given. `update` may be null for schedules without norm and updates, `uploads` where the
// backend's memory is the host's.
class Executor {
 public:
  Executor(Units& units, const ParameterStore& parameters, const Schedule& schedule,
           const std::vector<PartialSum>& partial_sums, ArenaMemory arenas, Workspace& workspace, Backend& backend,
           RankGroups& groups, UnitTickets& gathers, UpdateRule* update, MicroBatchUploads* uploads = nullptr);

  // One pass over the schedule. Micro-batches come from `source` in order, one per first forward. `observer` may be
  // null.
  void play(MicroBatchSource& source, ActionObserver* observer);

 private:
  void run(const Action& action, MicroBatchSource& source);
  UnitCall call_of(const Action& action);
  uint64_t recording_key(const Action& action, const UnitCall& call) const;
  // Runs a unit's ops, or plays them as they were recorded.
  template <typename Ops>
  void compute(const Action& action, const Ops& ops);
  void upload_micro_batch(const Action& action, MicroBatchSource& source);
  void reduce(int64_t unit);
  Lane::Ticket reduce_narrowed(int64_t unit);
  void widen(int64_t unit);
  void await_gradients(const Action& action);

  Units& units_;
  const ParameterStore& parameters_;
  const Schedule& schedule_;
  const std::vector<PartialSum>& partial_sums_;
  SlotMap slots_;
  ArenaMemory arenas_;
  Workspace& workspace_;
  Backend& backend_;
  RankGroups& groups_;
  UnitTickets& gathers_;
  UnitTickets sums_;
  UpdateRule* update_;
  MicroBatchUploads* uploads_;
};

}  // namespace gptrain
