#include "parallel/parameter_exchange.h"

#include <algorithm>

#include "ops/block_codes.h"
#include "parallel/coded_weights.h"

namespace gptrain::inline parallel {
namespace {

GroupKind kind_of(ReductionGroup group, const UnitRange& unit) {
  switch (group) {
    case ReductionGroup::tensor:
      return GroupKind::tensor;
    case ReductionGroup::kv_heads:
      return GroupKind::kv_heads;
    case ReductionGroup::replicas:
      return kind_of(unit.replicas);
    case ReductionGroup::tied:
      return GroupKind::tied;
  }
  return GroupKind::count;
}

// Values of a unit's elements that ranks gather.
struct GatheredValues {
  std::byte *piece, *whole;  // values of this rank's piece; memory for all values
  int64_t block;             // elements that share a value
  DType dtype;
};

Lane::Ticket gather_pieces(const ParameterStore& parameters, int64_t unit, RankGroups& groups,
                           const GatheredValues& values) {
  const UnitRange& range = parameters.layout().units[unit];
  Lane& lane = groups.lane(LaneKind::weights);
  const auto group = [&](GroupKind kind) { return groups.group(LaneKind::weights, kind); };
  const int64_t in_piece = range.piece_elements() / values.block;
  const int64_t of_node = groups.ranks_of_node(range.replicas);
  if (of_node == 0)
    return lane.all_gather(group(kind_of(range.replicas)), values.piece, values.whole, in_piece, values.dtype);
  // Ranks with the same index on all nodes gather the pieces of that index, then the ranks of the node all pieces.
  const int64_t count = range.elements / values.block / of_node;
  const int64_t first = parameters.piece(unit).first / values.block;
  std::byte* const share = values.whole + first / count * count * dtype_bytes(values.dtype);
  lane.all_gather(group(nodes_kind_of(range.replicas)), values.piece, share, in_piece, values.dtype);
  return lane.all_gather(group(node_kind_of(range.replicas)), share, values.whole, count, values.dtype);
}

}  // namespace

ParameterExchange::ParameterExchange(const ParameterStore& parameters, RankGroups& groups, Backend& backend,
                                     const AccumulatedGradients* accumulated, const ReducerMaker& make)
    : parameters_(parameters),
      groups_(groups),
      backend_(backend),
      accumulated_(accumulated),
      sums_(parameters.num_parameter_units(), Lane::done) {
  for (size_t group = 0; group < num_replica_groups; ++group)
    reducers_[group] = make({parameters, groups, backend}, static_cast<ReplicaGroup>(group));
}

GradientReducer& ParameterExchange::reducer(int64_t unit) const {
  return *reducers_[parameters_.layout().units[unit].replicas];
}

Lane::Ticket begin_gather(const ParameterStore& parameters, int64_t unit, std::byte* gathered, RankGroups& groups,
                          Backend& backend) {
  if (parameters.piece_elements(unit) == 0) return Lane::done;
  Lane& lane = groups.lane(LaneKind::weights);
  const ReplicaGroup group = parameters.layout().units[unit].replicas;
  // A rank that updates whole units copies its own, if updates write other memory than the ops read.
  const bool is_cut = parameters.sharding().cuts_state();
  Communicator* const replicas = is_cut ? groups.group(LaneKind::weights, kind_of(group)) : nullptr;
  const UnitParameters whole = parameters.whole(unit, gathered);
  if (const int64_t count = parameters.f32_norm_elements(unit); count > 0) {
    // Each rank fills in its piece of the masters, and zeros for the others' pieces: the sum is exact.
    const NormPiece own = parameters.norm_piece(unit);
    auto* const norms = reinterpret_cast<float*>(whole.norms);
    const int64_t before = std::min(own.first, count);
    const int64_t after = count - before - own.count;
    if (before > 0) backend.upload(norms, parameters.zeros(), before * dtype_bytes(DType::f32));
    if (after > 0) backend.upload(norms + count - after, parameters.zeros(), after * dtype_bytes(DType::f32));
    // Norms whose masters are away have been copied already (copy_norms), perhaps beside the weights of updates.
    float* const from = parameters.sharding().masters_away ? parameters.updated_norms(unit) : own.master;
    if (own.count > 0 && from != norms + own.first) {
      backend.run(Cast{.from = Matrix(from, DType::f32, 1, own.count),
                       .to = Matrix(norms + own.first, DType::f32, 1, own.count)});
    }
    lane.all_reduce(replicas, whole.norms, count, DType::f32);
  }
  const DType dtype = parameters.sharding().compute;
  const UnitPiece copied = is_cut ? parameters.piece(unit) : UnitPiece{0, parameters.layout().units[unit].elements};
  std::byte* const from =
      parameters.weights_piece(unit) - (parameters.piece(unit).first - copied.first) * dtype_bytes(dtype);
  if (replicas == nullptr && from != whole.weights)
    backend.run(
        Cast{.from = Matrix(from, dtype, 1, copied.elements), .to = Matrix(whole.weights, dtype, 1, copied.elements)});
  if (!is_cut) return Lane::done;
  if (parameters.sharding().codes_weights_of(parameters.layout().units[unit])) {
    const CodedWeights coded(gathered, parameters.layout().units[unit].elements);
    coded.encode(backend, Matrix(parameters.weights_piece(unit), dtype, 1, copied.elements), copied.first);
    gather_pieces(parameters, unit, groups, {coded.codes(copied.first), coded.codes(0), 1, DType::u8});
    return gather_pieces(parameters, unit, groups,
                         {coded.scales(copied.first), coded.scales(0), code_block, DType::f32});
  }
  return gather_pieces(parameters, unit, groups,
                       {parameters.weights_piece(unit), static_cast<std::byte*>(whole.weights), 1, dtype});
}

void finish_gather(const ParameterStore& parameters, int64_t unit, std::byte* gathered, Backend& backend) {
  const UnitRange& range = parameters.layout().units[unit];
  if (range.elements > 0 && parameters.sharding().codes_weights_of(range))
    CodedWeights(gathered, range.elements).decode(backend);
}

void copy_norms(const ParameterStore& parameters, int64_t unit, Backend& backend) {
  if (!parameters.sharding().masters_away) return;
  const NormPiece own = parameters.norm_piece(unit);
  if (own.count == 0) return;
  backend.run(Cast{.from = Matrix(own.master, DType::f32, 1, own.count),
                   .to = Matrix(parameters.updated_norms(unit), DType::f32, 1, own.count)});
}

bool round_masters(const ParameterStore& parameters, int64_t unit, Backend& backend) {
  const UpdateRange range = parameters.update_range(unit);
  if (range.elements == 0 || range.weights == nullptr || range.master == nullptr) return false;
  backend.run(Cast{.from = Matrix(range.master, DType::f32, 1, range.elements),
                   .to = Matrix(range.weights, parameters.sharding().compute, 1, range.elements)});
  return true;
}

// Sums the part of the table that update_range(0) covers. Both stages have the same part, as they lay the unit out
// alike.
void ParameterExchange::sum_tied() {
  const UpdateRange held = parameters_.update_range(0);
  // A sum that is away has come to its slot.
  const bool away = parameters_.sharding().gradients_away;
  auto* const gradients =
      static_cast<std::byte*>((away ? parameters_.gradients_piece(0) : parameters_.gradients_of_range(0)).data);
  Lane& lane = groups_.lane(LaneKind::gradients);
  const UnitRange& range = parameters_.layout().units[0];
  for (const Reduction& sum : range.reductions) {
    if (sum.group != ReductionGroup::tied) continue;
    const int64_t first = std::max(sum.first, held.first);
    const int64_t end = std::min(sum.first + sum.count, held.first + held.elements);
    if (first < end) {
      const DType dtype = parameters_.sharding().gradients;
      lane.all_reduce(groups_.group(LaneKind::gradients, kind_of(sum.group, range)),
                      gradients + (first - held.first) * dtype_bytes(dtype), end - first, dtype);
    }
  }
  lane.wait_all();
}

void ParameterExchange::begin_sum(int64_t unit, const Gradients& of) {
  Lane& lane = groups_.lane(LaneKind::gradients);
  Lane::Ticket& ticket = sums_[unit];
  auto* const gradients = reinterpret_cast<float*>(of.whole);
  ticket = Lane::done;
  if (accumulated_ != nullptr) accumulated_->add_accumulated_to(unit, of.whole);
  const UnitRange& range = parameters_.layout().units[unit];
  for (const Reduction& sum : range.reductions) {
    if (sum.group == ReductionGroup::tied) continue;
    if (sum.group == ReductionGroup::replicas) {
      // Sums over tensor ranks are in f32, so they must end before ops read them.
      if (reducer(unit).begins_with_ops()) lane.wait(ticket);
      ticket = std::max(ticket, reducer(unit).begin(unit, 0, of));
    } else {
      Communicator* const group = groups_.group(LaneKind::gradients, kind_of(sum.group, range));
      ticket = std::max(ticket, lane.all_reduce(group, gradients + sum.first, sum.count, DType::f32));
    }
  }
}

void ParameterExchange::go_on_with_sum(int64_t unit, const Gradients& of, int phase) {
  Lane::Ticket& ticket = sums_[unit];
  groups_.lane(LaneKind::gradients).wait(ticket);
  ticket = reducer(unit).begin(unit, phase, of);
}

void ParameterExchange::keep(int64_t unit, const Gradients& of, int64_t micro_batch) {
  accumulated_->add_own(unit, of.whole, micro_batch);
}

void ParameterExchange::await_sum(int64_t unit, const Gradients& of, int64_t micro_batch) {
  Lane& lane = groups_.lane(LaneKind::gradients);
  lane.wait(sums_[unit]);
  reducer(unit).finish(unit, of);
  if (accumulated_ != nullptr) return accumulated_->add_sum(unit, of.whole, micro_batch);
  if (!parameters_.sharding().cuts_gradients() || parameters_.sharding().gradients_away) return;
  const UnitPiece own = parameters_.piece(unit);
  const Matrix from(reinterpret_cast<float*>(of.whole) + own.first, DType::f32, 1, own.elements);
  const Matrix to = parameters_.gradients_piece(unit);
  if (micro_batch == 0) {
    backend_.run(Cast{.from = from, .to = to});
  } else {
    backend_.run(Add{.from = from, .to = to});
  }
}

}  // namespace gptrain::parallel
