// Exchange of parameters between data ranks, tensor ranks and stages: gathers of weights and sums of gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/enum_array.h"
#include "ops/backend.h"
#include "parallel/accumulated_gradients.h"
#include "parallel/gradient_reducer.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// Begins to gather a unit's weights from all ranks' pieces (ZeRO 1 to 3). Weights in the compute dtype go to `gathered`
// with ZeRO 3, else to their own place. If the dtype is not f32, the norms' f32 masters are gathered as well. The
// ticket covers both. Collective over the unit's group (ReplicaGroup).
Lane::Ticket begin_gather(const ParameterStore& parameters, int64_t unit, std::byte* gathered, RankGroups& groups,
                          Backend& backend);
// Decodes weights that were gathered in codes (Sharding::codes_weights), else no effect. Call once, after the gather.
void finish_gather(const ParameterStore& parameters, int64_t unit, std::byte* gathered, Backend& backend);

// Copies this rank's part of a unit's f32 norms from the masters to ParameterStore::updated_norms, with
// Sharding::masters_away; else no effect. REQUIRES: the unit's masters are at home or landed.
void copy_norms(const ParameterStore& parameters, int64_t unit, Backend& backend);
// Rounds the master weights of ParameterStore::update_range to its weights. RETURNS false, without effect, if the rank
// lacks one of them. REQUIRES: as copy_norms.
bool round_masters(const ParameterStore& parameters, int64_t unit, Backend& backend);

// Tickets by unit. Tickets of gathers outlive a step: the next step or an evaluation awaits the weights that it
// updated.
using UnitTickets = std::vector<Lane::Ticket>;

class ParameterExchange {
 public:
  using Gradients = UnitGradients;
  using ReducerMaker = std::function<std::unique_ptr<GradientReducer>(const ReductionContext&, ReplicaGroup)>;

  // Borrows all but `make`, which makes the reducer of each group. `accumulated` is null if gradients are accumulated
  // in f32.
  ParameterExchange(const ParameterStore& parameters, RankGroups& groups, Backend& backend,
                    const AccumulatedGradients* accumulated, const ReducerMaker& make = make_reducer);

  // Begins to sum the gradients over the groups that the layout names (Reduction). Collective over these.
  void begin_sum(int64_t unit, const Gradients& of);
  // Waits for the last phase of the sum over replicas that began, and begins `phase`, the next one.
  void go_on_with_sum(int64_t unit, const Gradients& of, int phase);
  // Waits for the sum. With ZeRO 2 and 3, adds this rank's piece to the sum of earlier
  // micro-batches, unless that is away.
  void await_sum(int64_t unit, const Gradients& of, int64_t micro_batch);
  // Adds a micro-batch's gradients to the sum of earlier micro-batches that this rank keeps. REQUIRES:
  // `accumulated` is not null.
  void keep(int64_t unit, const Gradients& of, int64_t micro_batch);
  // Ends the step's sums of a unit (GradientReducer::end_step).
  void end_step(int64_t unit) { reducer(unit).end_step(unit); }
  // Sums the gradients of a tied table over the first and the last stage, and waits. Collective over the group `tied`.
  // REQUIRES: a sum that is away is in its slot.
  void sum_tied();

 private:
  GradientReducer& reducer(int64_t unit) const;

  const ParameterStore& parameters_;
  RankGroups& groups_;
  Backend& backend_;
  const AccumulatedGradients* accumulated_;
  EnumArray<ReplicaGroup, std::unique_ptr<GradientReducer>, num_replica_groups> reducers_;
  UnitTickets sums_;
};

}  // namespace gptrain::parallel
