// Sums of gradients over the ranks that hold replicas of a unit, in phases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/backend.h"
#include "parallel/groups.h"
#include "parallel/parameters.h"

namespace gptrain::inline parallel {

// Buffers with a unit's gradients.
struct UnitGradients {
  std::byte* whole;   // f32
  std::byte* narrow;  // memory for them in the narrower dtype in which they are summed, or for messages; null: none
};

// Objects that a sum uses, all borrowed.
struct ReductionContext {
  const ParameterStore& parameters;
  RankGroups& groups;
  Backend& backend;
};

// A method to sum the gradients of units of one group (ReplicaGroup), called by ParameterExchange as the schedule says.
// A phase is ops and then one collective; the next phase begins once that has ended. The planned buffers of a sum live
// from its first phase until `finish`.
class GradientReducer {
 public:
  virtual ~GradientReducer() = default;
  // Returns the number of phases of a unit's sums (UnitTraits::sum_phases).
  virtual int phases(int64_t) const { return 1; }
  // Returns true if the first phase has ops that read the gradients, so that earlier sums of them must have ended.
  virtual bool begins_with_ops() const { return false; }
  // Begins a phase, counted from 0. Collective over the unit's group. REQUIRES: the phase before has ended.
  virtual Lane::Ticket begin(int64_t unit, int phase, const UnitGradients& of) = 0;
  // Leaves the sum in of.whole as f32: the whole unit with ZeRO 0, else this rank's piece. REQUIRES: the last phase has
  // ended.
  virtual void finish(int64_t, const UnitGradients&) {}
  // Keeps the errors that the step's sums of a unit leave for the next step, unless the step is skipped. Called once a
  // step, after the update of the unit.
  virtual void end_step(int64_t) {}
};

// Begins to sum all of a unit's gradients, `gradients` of `dtype`, in place: all elements with ZeRO 0, else this rank's
// piece. If ranks communicate by node, sums each node's ranks in rank order, then the nodes in their order, and rounds
// 16-bit sums after both. Reducers call it. Collective over the unit's group.
Lane::Ticket plain_sum(const ReductionContext& context, int64_t unit, std::byte* gradients, DType dtype);

// Begins to sum a unit's gradients over the ranks of this rank's node, in rank order. The sum of this rank's share, the
// pieces of ranks with its place on all nodes, is then in its place in `gradients`. Collective over the group `node`.
// REQUIRES: ranks communicate by node.
Lane::Ticket sum_in_node(const ReductionContext& context, int64_t unit, std::byte* gradients, DType dtype);

// Returns the reducer of a group's units: sums in f32 or in Sharding::reduce.
std::unique_ptr<GradientReducer> make_reducer(const ReductionContext& context, ReplicaGroup group);

// Returns the reducer for units of islands (GroupKind::islands): sums in f32 over the ranks of the island, then over
// the islands. One phase if an island is one rank.
std::unique_ptr<GradientReducer> make_islands_reducer(const ReductionContext& context);

// Returns the kind of the communication group for a group of replicas, of its part on a node, and of the ranks with the
// same place on all nodes.
constexpr GroupKind kind_of(ReplicaGroup group) {
  return group == ReplicaGroup::expert_data ? GroupKind::expert_data : GroupKind::data;
}
constexpr GroupKind node_kind_of(ReplicaGroup group) {
  return group == ReplicaGroup::expert_data ? GroupKind::expert_node : GroupKind::node;
}
constexpr GroupKind nodes_kind_of(ReplicaGroup group) {
  return group == ReplicaGroup::expert_data ? GroupKind::expert_nodes : GroupKind::nodes;
}

}  // namespace gptrain::parallel
