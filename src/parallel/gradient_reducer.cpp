#include "parallel/gradient_reducer.h"

namespace gptrain::inline parallel {
namespace {

class PlainReducer final : public GradientReducer {
 public:
  explicit PlainReducer(const ReductionContext& context) : context_(context) {}
  Lane::Ticket begin(int64_t unit, int, const UnitGradients& of) override {
    return plain_sum(context_, unit, of.whole, DType::f32);
  }

 private:
  const ReductionContext context_;
};

// Rounds the gradients to Sharding::reduce, sums them there and widens the sum.
class NarrowReducer final : public GradientReducer {
 public:
  explicit NarrowReducer(const ReductionContext& context) : context_(context) {}

  bool begins_with_ops() const override { return true; }
  Lane::Ticket begin(int64_t unit, int, const UnitGradients& of) override {
    const DType reduce = context_.parameters.sharding().reduce;
    const int64_t elements = context_.parameters.piece_elements(unit);
    context_.backend.run(Cast{.from = Matrix(of.whole, DType::f32, range(unit).pieces, elements),
                              .to = Matrix(of.narrow, reduce, range(unit).pieces, elements)});
    return plain_sum(context_, unit, of.narrow, reduce);
  }

  void finish(int64_t unit, const UnitGradients& of) override {
    const Sharding& sharding = context_.parameters.sharding();
    const UnitPiece own = context_.parameters.piece(unit);
    const int64_t pieces = sharding.cuts_state() ? 1 : range(unit).pieces;
    const int64_t first = sharding.cuts_state() ? own.first : 0;
    std::byte* const sum = of.narrow + first * dtype_bytes(sharding.reduce);
    std::byte* const gradients = of.whole + first * dtype_bytes(DType::f32);
    context_.backend.run(Cast{.from = Matrix(sum, sharding.reduce, pieces, own.elements),
                              .to = Matrix(gradients, DType::f32, pieces, own.elements)});
  }

 private:
  const UnitRange& range(int64_t unit) const { return context_.parameters.layout().units[unit]; }

  const ReductionContext context_;
};

// Sums in f32 over the ranks of an island, then over the islands.
class IslandsReducer final : public GradientReducer {
 public:
  explicit IslandsReducer(const ReductionContext& context) : context_(context) {}

  int phases(int64_t unit) const override { return context_.parameters.replica_rank(unit).size > 1 ? 2 : 1; }
  Lane::Ticket begin(int64_t unit, int phase, const UnitGradients& of) override {
    if (phase + 1 < phases(unit)) return plain_sum(context_, unit, of.whole, DType::f32);
    const ParameterStore& parameters = context_.parameters;
    const bool cuts = parameters.sharding().cuts_state();
    const UnitPiece own = parameters.piece(unit);
    return context_.groups.lane(LaneKind::gradients)
        .all_reduce(context_.groups.group(LaneKind::gradients, GroupKind::islands),
                    of.whole + (cuts ? own.first : 0) * dtype_bytes(DType::f32),
                    cuts ? own.elements : parameters.layout().units[static_cast<size_t>(unit)].elements, DType::f32);
  }

 private:
  const ReductionContext context_;
};

}  // namespace

std::unique_ptr<GradientReducer> make_islands_reducer(const ReductionContext& context) {
  return std::make_unique<IslandsReducer>(context);
}

namespace {

// Returns this rank's share of a unit that ranks sum by node.
UnitPiece share_of(const ReductionContext& context, int64_t unit) {
  const UnitRange& range = context.parameters.layout().units[unit];
  const int64_t count = range.elements / context.groups.ranks_of_node(range.replicas);
  return {count == 0 ? 0 : context.parameters.piece(unit).first / count * count, count};
}

// Sums by node: within the node to this rank's share, that share or this rank's piece of it between nodes, and with
// ZeRO 0 gathers the shares of the node.
Lane::Ticket sum_by_node(const ReductionContext& context, int64_t unit, std::byte* gradients, DType dtype) {
  const UnitRange& range = context.parameters.layout().units[unit];
  const UnitPiece own = context.parameters.piece(unit);
  const UnitPiece share = share_of(context, unit);
  Lane& lane = context.groups.lane(LaneKind::gradients);
  Communicator* const node = context.groups.group(LaneKind::gradients, node_kind_of(range.replicas));
  Communicator* const nodes = context.groups.group(LaneKind::gradients, nodes_kind_of(range.replicas));
  const auto at = [&](int64_t element) { return gradients + element * dtype_bytes(dtype); };
  sum_in_node(context, unit, gradients, dtype);
  if (context.parameters.sharding().cuts_state())
    return lane.reduce_scatter(nodes, at(share.first), at(own.first), own.elements, dtype);
  lane.all_reduce(nodes, at(share.first), share.elements, dtype);
  return lane.all_gather(node, at(share.first), gradients, share.elements, dtype);
}

}  // namespace

Lane::Ticket sum_in_node(const ReductionContext& context, int64_t unit, std::byte* gradients, DType dtype) {
  const UnitPiece share = share_of(context, unit);
  Communicator* const node =
      context.groups.group(LaneKind::gradients, node_kind_of(context.parameters.layout().units[unit].replicas));
  return context.groups.lane(LaneKind::gradients)
      .reduce_scatter(node, gradients, gradients + share.first * dtype_bytes(dtype), share.elements, dtype);
}

Lane::Ticket plain_sum(const ReductionContext& context, int64_t unit, std::byte* gradients, DType dtype) {
  const UnitRange& range = context.parameters.layout().units[unit];
  if (context.groups.ranks_of_node(range.replicas) > 0) return sum_by_node(context, unit, gradients, dtype);
  Lane& lane = context.groups.lane(LaneKind::gradients);
  Communicator* const replicas = context.groups.group(LaneKind::gradients, kind_of(range.replicas));
  if (!context.parameters.sharding().cuts_state()) return lane.all_reduce(replicas, gradients, range.elements, dtype);
  const UnitPiece own = context.parameters.piece(unit);
  return lane.reduce_scatter(replicas, gradients, gradients + own.first * dtype_bytes(dtype), own.elements, dtype);
}

std::unique_ptr<GradientReducer> make_reducer(const ReductionContext& context, ReplicaGroup group) {
  if (context.parameters.sharding().narrows_gradients(group)) return std::make_unique<NarrowReducer>(context);
  return std::make_unique<PlainReducer>(context);
}

}  // namespace gptrain::parallel
