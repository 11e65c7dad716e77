#include "parallel/parameter_exchange.h"

#include <algorithm>

namespace gptrain::inline parallel {
namespace {

GroupKind kind_of(CopyGroup group) {
  return group == CopyGroup::expert_data ? GroupKind::expert_data : GroupKind::data;
}

GroupKind kind_of(ReductionGroup group, const UnitRange& unit) {
  switch (group) {
    case ReductionGroup::tensor:
      return GroupKind::tensor;
    case ReductionGroup::kv_heads:
      return GroupKind::replicas;
    case ReductionGroup::copies:
      return kind_of(unit.copies);
    case ReductionGroup::tied:
      return GroupKind::tied;
  }
  return GroupKind::count;
}

}  // namespace

Lane::Ticket begin_gather(const ParameterStore& parameters, int64_t unit, std::byte* gathered, RankGroups& groups,
                          Backend& backend) {
  if (parameters.piece_elements(unit) == 0) return Lane::done;
  Lane& lane = groups.lane(LaneKind::weights);
  const CopyGroup group = parameters.layout().units[static_cast<size_t>(unit)].copies;
  Communicator* const copies = groups.group(LaneKind::weights, kind_of(group));
  const UnitParameters whole = parameters.whole(unit, gathered);
  if (const int64_t count = parameters.f32_norm_elements(unit); count > 0) {
    // Each rank fills in its piece of the masters, and zeros for the others' pieces: the sum is exact.
    const NormPiece own = parameters.norm_piece(unit);
    auto* const norms = reinterpret_cast<float*>(whole.norms);
    const int64_t before = std::min(own.first, count);
    const int64_t after = count - before - own.count;
    if (before > 0) backend.upload(norms, parameters.zeros(), before * dtype_bytes(DType::f32));
    if (after > 0) backend.upload(norms + count - after, parameters.zeros(), after * dtype_bytes(DType::f32));
    if (own.count > 0 && own.master != norms + own.first) {
      backend.run(Cast{.from = Matrix(own.master, DType::f32, 1, own.count),
                       .to = Matrix(norms + own.first, DType::f32, 1, own.count)});
    }
    lane.all_reduce(copies, whole.norms, count, DType::f32);
  }
  if (copies == nullptr && parameters.weights_piece(unit) != whole.weights) {
    const DType dtype = parameters.sharding().compute;
    const int64_t elements = parameters.piece_elements(unit);
    backend.run(Cast{.from = Matrix(parameters.weights_piece(unit), dtype, 1, elements),
                     .to = Matrix(whole.weights, dtype, 1, elements)});
  }
  return lane.all_gather(copies, parameters.weights_piece(unit), whole.weights, parameters.piece_elements(unit),
                         parameters.sharding().compute);
}

// Sums the part of the table that update_range(0) covers. Both stages have the same part, as they lay the unit out
// alike.
void ParameterExchange::sum_tied() {
  const UpdateRange held = parameters_.update_range(0);
  Lane& lane = groups_.lane(LaneKind::gradients);
  const UnitRange& range = parameters_.layout().units[0];
  for (const Reduction& sum : range.reductions) {
    if (sum.group != ReductionGroup::tied) continue;
    const int64_t first = std::max(sum.first, held.first);
    const int64_t end = std::min(sum.first + sum.count, held.first + held.elements);
    if (first < end) {
      const DType dtype = parameters_.sharding().gradients;
      lane.all_reduce(groups_.group(LaneKind::gradients, kind_of(sum.group, range)),
                      held.gradients + (first - held.first) * dtype_bytes(dtype), end - first, dtype);
    }
  }
  lane.wait_all();
}

void ParameterExchange::begin_sum(int64_t unit, const Gradients& of) {
  Lane& lane = groups_.lane(LaneKind::gradients);
  Lane::Ticket& ticket = sums_[static_cast<size_t>(unit)];
  auto* const gradients = reinterpret_cast<float*>(of.whole);
  const Sharding& sharding = parameters_.sharding();
  ticket = Lane::done;
  if (accumulated_ != nullptr) accumulated_->add_accumulated_to(unit, of.whole);
  const UnitRange& range = parameters_.layout().units[static_cast<size_t>(unit)];
  for (const Reduction& sum : range.reductions) {
    if (sum.group == ReductionGroup::tied) continue;
    Communicator* const group = groups_.group(LaneKind::gradients, kind_of(sum.group, range));
    const bool over_copies = sum.group == ReductionGroup::copies;
    if (over_copies && sharding.narrows_gradients(range.copies)) {
      // Sums over tensor ranks are in f32, so they must end before the gradients are rounded.
      lane.wait(ticket);
      ticket = begin_narrow_sum(unit, of);
    } else if (over_copies && sharding.cuts_state()) {
      const UnitPiece own = parameters_.piece(unit);
      ticket = std::max(ticket, lane.reduce_scatter(group, gradients, gradients + own.first, own.elements, DType::f32));
    } else {
      ticket = std::max(ticket, lane.all_reduce(group, gradients + sum.first, sum.count, DType::f32));
    }
  }
}

Lane::Ticket ParameterExchange::begin_narrow_sum(int64_t unit, const Gradients& of) {
  const Sharding& sharding = parameters_.sharding();
  const UnitRange& range = parameters_.layout().units[static_cast<size_t>(unit)];
  const UnitPiece own = parameters_.piece(unit);
  std::byte* const bucket = of.narrow;
  backend_.run(Cast{.from = Matrix(of.whole, DType::f32, range.pieces, own.elements),
                    .to = Matrix(bucket, sharding.reduce, range.pieces, own.elements)});
  Lane& lane = groups_.lane(LaneKind::gradients);
  Communicator* const copies = groups_.group(LaneKind::gradients, kind_of(range.copies));
  if (!sharding.cuts_state()) return lane.all_reduce(copies, bucket, range.elements, sharding.reduce);
  return lane.reduce_scatter(copies, bucket, bucket + own.first * dtype_bytes(sharding.reduce), own.elements,
                             sharding.reduce);
}

// Copies a sum back to of.whole as f32: the whole unit with ZeRO 0, else this rank's piece.
void ParameterExchange::widen(int64_t unit, const Gradients& of) {
  const Sharding& sharding = parameters_.sharding();
  const UnitPiece own = parameters_.piece(unit);
  const int64_t pieces = !sharding.cuts_state() ? parameters_.place(unit).size : 1;
  const int64_t first = !sharding.cuts_state() ? 0 : own.first;
  std::byte* const sum = of.narrow + first * dtype_bytes(sharding.reduce);
  std::byte* const gradients = of.whole + first * dtype_bytes(DType::f32);
  backend_.run(Cast{.from = Matrix(sum, sharding.reduce, pieces, own.elements),
                    .to = Matrix(gradients, DType::f32, pieces, own.elements)});
}

void ParameterExchange::keep(int64_t unit, const Gradients& of, int64_t micro_batch) {
  accumulated_->add_own(unit, of.whole, micro_batch);
}

void ParameterExchange::await_sum(int64_t unit, const Gradients& of, int64_t micro_batch) {
  groups_.lane(LaneKind::gradients).wait(sums_[static_cast<size_t>(unit)]);
  if (parameters_.sharding().narrows_gradients(parameters_.layout().units[static_cast<size_t>(unit)].copies))
    widen(unit, of);
  if (accumulated_ != nullptr) return accumulated_->add_sum(unit, of.whole, micro_batch);
  if (!parameters_.sharding().cuts_gradients()) return;
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
