#include "parallel/executor.h"

#include <bit>

namespace gptrain {

std::vector<PartialSum> partial_sums(const ModelSpec& spec, const std::vector<TensorShard>& shards,
                                     const ParameterLayout& layout, bool sequence) {
  std::vector<PartialSum> sums;
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    const TensorSpec& tensor = spec.tensors[i];
    const int64_t start = layout.segments[i].offset - layout.units[static_cast<size_t>(tensor.unit)].offset;
    const bool partial = tensor.norm_use == NormUse::of_heads || (tensor.norm_use == NormUse::of_rows && sequence);
    if (partial) sums.push_back({tensor.unit, start, shards[i].count(), GroupKind::tensor});
    if (shards[i].replicas_count > 0) {
      sums.push_back({tensor.unit, start + shards[i].replicas_first, shards[i].replicas_count, GroupKind::replicas});
    }
  }
  return sums;
}

Executor::Executor(Units& units, const ParameterStore& parameters, const Schedule& schedule,
                   const std::vector<PartialSum>& partial_sums, ArenaMemory arenas, Workspace& workspace,
                   Backend& backend, RankGroups& groups, UnitTickets& gathers, UpdateRule* update,
                   MicroBatchUploads* uploads)
    : units_(units),
      parameters_(parameters),
      schedule_(schedule),
      partial_sums_(partial_sums),
      slots_(units, schedule),
      arenas_(arenas),
      workspace_(workspace),
      backend_(backend),
      groups_(groups),
      gathers_(gathers),
      sums_(static_cast<size_t>(schedule.num_units), Lane::done),
      update_(update),
      uploads_(uploads) {}

void Executor::play(MicroBatchSource& source, ActionObserver* observer) {
  for (const Action& action : schedule_.actions) {
    if (observer != nullptr && !observer->before(action)) continue;
    run(action, source);
    if (observer != nullptr) observer->after(action);
  }
}

UnitCall Executor::call_of(const Action& action) {
  UnitCall call = slots_.call(action, arenas_.activations, arenas_.data);
  call.parameters = parameters_.whole(action.unit);
  call.head_matrix = parameters_.whole(schedule_.tied_head ? 0 : parameters_.num_units() - 1);
  call.state = arenas_.state;
  call.workspace = &workspace_;
  // From ZeRO 2 on a unit's gradients leave after every micro-batch.
  call.accumulate = schedule_.zero < 2 && action.micro_batch > 0;
  const bool is_block = action.unit > 0 && action.unit + 1 < schedule_.num_units;
  if (is_block && units_.fp8_weights_bytes() > 0) {
    // With ZeRO 3 the blocks take turns on one record.
    const bool shared = schedule_.zero == 3;
    call.fp8_weights = arenas_.fp8_weights + (shared ? 0 : action.unit - 1) * units_.fp8_weights_bytes();
    call.prepare_weights = shared || (action.kind == ActionKind::forward && action.micro_batch == 0);
  }
  return call;
}

// Everything that a unit's ops depend on: which they are, and where their operands lie.
uint64_t Executor::recording_key(const Action& action, const UnitCall& call) const {
  uint64_t hash = 0xCBF29CE484222325U;
  const auto add = [&hash](auto value) { hash = (hash ^ std::bit_cast<uint64_t>(value)) * 0x100000001B3U; };
  add(this);
  add(static_cast<uint64_t>(action.kind));
  add(static_cast<uint64_t>(action.unit));
  for (const UnitParameters& parameters : {call.parameters, call.head_matrix}) {
    add(parameters.weights);
    add(parameters.norms);
    add(parameters.gradients);
  }
  for (const std::byte* place :
       {call.input, call.output, call.saved, call.gradient, call.d_output, call.d_input, call.fp8_weights})
    add(place);
  add(call.tokens);
  add(static_cast<uint64_t>(call.accumulate));
  add(static_cast<uint64_t>(call.prepare_weights));
  return hash;
}

template <typename Ops>
void Executor::compute(const Action& action, const Ops& ops) {
  const UnitCall call = call_of(action);
  if (groups_.exchange_amid_ops()) return ops(call);
  backend_.run_recorded(recording_key(action, call), [&] { ops(call); });
}

void Executor::run(const Action& action, MicroBatchSource& source) {
  switch (action.kind) {
    case ActionKind::forward:
      if (action.unit == 0) upload_micro_batch(action, source);
      return compute(action, [&](const UnitCall& call) { units_.forward(action.unit, call); });
    case ActionKind::recompute:
      return compute(action, [&](const UnitCall& call) { units_.recompute(action.unit, call); });
    case ActionKind::loss:
      return compute(action, [&](const UnitCall& call) { units_.loss(call); });
    case ActionKind::evaluate:
      return compute(action, [&](const UnitCall& call) { units_.evaluate(call); });
    case ActionKind::backward_input:
      return compute(action,
                     [&](const UnitCall& call) { units_.backward(action.unit, call, BackwardPart::input); });
    case ActionKind::backward_weight:
      return compute(action,
                     [&](const UnitCall& call) { units_.backward(action.unit, call, BackwardPart::weight); });
    case ActionKind::backward:
      return compute(action, [&](const UnitCall& call) { units_.backward(action.unit, call, BackwardPart::both); });
    case ActionKind::gather:
      gathers_[static_cast<size_t>(action.unit)] = begin_gather(parameters_, action.unit, groups_, backend_);
      return;
    case ActionKind::await_weights:
      return groups_.lane(LaneKind::weights).wait(gathers_[static_cast<size_t>(action.unit)]);
    case ActionKind::reduce:
      return reduce(action.unit);
    case ActionKind::await_gradients:
      return await_gradients(action);
    case ActionKind::norm:
      return update_->norm();
    case ActionKind::update:
      return update_->update(action.unit);
  }
}

void Executor::upload_micro_batch(const Action& action, MicroBatchSource& source) {
  const StepShape& shape = units_.shape();
  const MicroBatch device = slots_.micro_batch(action, arenas_.data);
  if (uploads_ != nullptr) return uploads_->upload(source, device);
  const MicroBatch& host = source.next();
  const int64_t token_bytes = shape.rows() * static_cast<int64_t>(sizeof(int32_t));
  backend_.upload(device.tokens, host.tokens, token_bytes);
  backend_.upload(device.targets, host.targets, token_bytes);
  backend_.upload(device.sample_ids, host.sample_ids, shape.batch * static_cast<int64_t>(sizeof(int64_t)));
  if (shape.mask_documents) backend_.upload(device.document_starts, host.document_starts, token_bytes);
}

Lane::Ticket begin_gather(const ParameterStore& parameters, int64_t unit, RankGroups& groups,
                                      Backend& backend) {
  Lane& lane = groups.lane(LaneKind::weights);
  Communicator* const data = groups.group(LaneKind::weights, GroupKind::copies);
  const UnitParameters whole = parameters.whole(unit);
  if (const int64_t count = parameters.apart_norm_elements(unit); count > 0) {
    // Each rank has its piece of the masters; what the others have is zero here, so the sum is exact.
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
    lane.all_reduce(data, whole.norms, count, DType::f32);
  }
  return lane.all_gather(data, parameters.weights_piece(unit), whole.weights, parameters.piece_elements(unit),
                           parameters.sharding().compute);
}

void Executor::reduce(int64_t unit) {
  Lane& lane = groups_.lane(LaneKind::gradients);
  Lane::Ticket& ticket = sums_[static_cast<size_t>(unit)];
  auto* const gradients = reinterpret_cast<float*>(parameters_.whole(unit).gradients);
  ticket = Lane::done;
  for (const PartialSum& sum : partial_sums_) {
    if (sum.unit != unit) continue;
    Communicator* const group = groups_.group(LaneKind::gradients, sum.group);
    ticket = std::max(ticket, lane.all_reduce(group, gradients + sum.first, sum.count, DType::f32));
  }
  if (parameters_.sharding().narrows_gradients()) {
    // The sums over tensor ranks are f32 and come before the rounding.
    lane.wait(ticket);
    ticket = reduce_narrowed(unit);
    return;
  }
  Communicator* const data = groups_.group(LaneKind::gradients, GroupKind::copies);
  const Sharding& sharding = parameters_.sharding();
  const int64_t piece = parameters_.piece_elements(unit);
  ticket = std::max(
      ticket, sharding.zero == 0
                  ? lane.all_reduce(data, gradients, piece * sharding.data_size, DType::f32)
                  : lane.reduce_scatter(data, gradients, gradients + sharding.data_rank * piece, piece, DType::f32));
}

Lane::Ticket Executor::reduce_narrowed(int64_t unit) {
  const Sharding& sharding = parameters_.sharding();
  const int64_t piece = parameters_.piece_elements(unit);
  std::byte* const bucket = parameters_.reduce_bucket(unit);
  backend_.run(Cast{.from = Matrix(parameters_.whole(unit).gradients, DType::f32, sharding.data_size, piece),
                    .to = Matrix(bucket, sharding.reduce, sharding.data_size, piece)});
  Lane& lane = groups_.lane(LaneKind::gradients);
  Communicator* const data = groups_.group(LaneKind::gradients, GroupKind::copies);
  if (sharding.zero == 0) return lane.all_reduce(data, bucket, piece * sharding.data_size, sharding.reduce);
  std::byte* const own = bucket + sharding.data_rank * piece * dtype_bytes(sharding.reduce);
  return lane.reduce_scatter(data, bucket, own, piece, sharding.reduce);
}

// Puts a sum back where the gradients are, as f32: with ZeRO 0 all of the unit, else this rank's piece.
void Executor::widen(int64_t unit) {
  const Sharding& sharding = parameters_.sharding();
  const int64_t piece = parameters_.piece_elements(unit);
  const int64_t pieces = sharding.zero == 0 ? sharding.data_size : 1;
  const int64_t first = sharding.zero == 0 ? 0 : sharding.data_rank * piece;
  std::byte* const sum = parameters_.reduce_bucket(unit) + first * dtype_bytes(sharding.reduce);
  std::byte* const gradients = parameters_.whole(unit).gradients + first * dtype_bytes(DType::f32);
  backend_.run(
      Cast{.from = Matrix(sum, sharding.reduce, pieces, piece), .to = Matrix(gradients, DType::f32, pieces, piece)});
}

void Executor::await_gradients(const Action& action) {
  groups_.lane(LaneKind::gradients).wait(sums_[static_cast<size_t>(action.unit)]);
  if (parameters_.sharding().narrows_gradients()) widen(action.unit);
  if (schedule_.zero < 2) return;
  const int64_t piece = parameters_.piece_elements(action.unit);
  auto* const whole = reinterpret_cast<float*>(parameters_.whole(action.unit).gradients);
  const Matrix from(whole + parameters_.sharding().data_rank * piece, DType::f32, 1, piece);
  const Matrix to(parameters_.gradients_piece(action.unit), DType::f32, 1, piece);
  if (action.micro_batch == 0) {
    backend_.run(Cast{.from = from, .to = to});
  } else {
    backend_.run(Add{.from = from, .to = to});
  }
}

}  // namespace gptrain
