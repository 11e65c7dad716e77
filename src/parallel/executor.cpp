#include "parallel/executor.h"

#include <algorithm>

namespace gptrain {

namespace {

GroupKind kind_of(ReductionGroup group) {
  switch (group) {
    case ReductionGroup::tensor:
      return GroupKind::tensor;
    case ReductionGroup::kv_heads:
      return GroupKind::replicas;
    case ReductionGroup::data:
      return GroupKind::copies;
    case ReductionGroup::tied:
      return GroupKind::tied;
  }
  return GroupKind::count;
}

}  // namespace

Executor::Executor(Model& model, const Program& program, const ParameterStore& parameters, const Workplace& place,
                   UpdateRule* update)
    : model_(model),
      program_(program),
      parameters_(parameters),
      place_(place),
      sums_(program.schedule.options.units.size(), Lane::done),
      links_(program.schedule.options.stages, *place.groups),
      update_(update) {}

void Executor::play(MicroBatchSource& source, ActionObserver* observer) {
  for (const Action& action : program_.schedule.actions) {
    if (observer != nullptr && !observer->before(action)) continue;
    run(action, source);
    if (observer != nullptr) observer->after(action);
  }
}

std::byte* Executor::at(const Action& action, Operand operand) const {
  return program_.address(action, operand, place_.arenas);
}

MicroBatch Executor::micro_batch(const Action& action) const {
  const StepShape& shape = model_.shape();
  if (action[Operand::batch] < 0) return {};
  return MicroBatch::at(at(action, Operand::batch), shape.batch, shape.sequence_length, shape.mask_documents);
}

UnitParameters Executor::whole(int64_t unit, const Action& action) const {
  return parameters_.whole(unit, at(action, Operand::weights), at(action, Operand::whole_gradients));
}

LayerCall Executor::call_of(const Action& action) const {
  const ScheduleOptions& options = program_.schedule.options;
  const MicroBatch batch = micro_batch(action);
  const int64_t matrix_unit = options.tied_head ? 0 : parameters_.num_units() - 1;
  LayerCall call{.parameters = whole(action.unit, action),
                .head_matrix = whole(matrix_unit, action),
                .tokens = batch.tokens,
                .targets = batch.targets,
                .sample_ids = batch.sample_ids,
                .document_starts = batch.document_starts,
                .state = place_.state,
                .input = at(action, Operand::input),
                .output = at(action, Operand::output),
                .saved_for_input = at(action, Operand::saved_for_input),
                .saved_for_weight = at(action, Operand::saved_for_weight),
                .gradients = at(action, Operand::gradients),
                .d_output = at(action, Operand::d_output),
                .d_input = at(action, Operand::d_input),
                .table_begun = options.tied_head && options.stages.last(),
                // From ZeRO 2 on a unit's gradients leave after every micro-batch.
                .accumulate = options.zero < 2 && action.micro_batch > 0,
                .fp8_weights = at(action, Operand::prepared_weights),
                .prepare_weights = false,
                .workspace = place_.workspace};
  if (const int32_t prepared = action[Operand::prepared_weights]; prepared >= 0) {
    // The copies are made by the action that is the first to name them.
    const int32_t first = program_.schedule.buffers[static_cast<size_t>(prepared)].first;
    call.prepare_weights = &action == &program_.schedule.actions[static_cast<size_t>(first)];
  }
  return call;
}

namespace {

// Everything that an action's ops depend on: which they are, and where their operands lie.
RecordingKey recording_key(const void* executor, const Action& action, const LayerCall& call) {
  RecordingKey key;
  key.add(executor);
  key.add(static_cast<uint64_t>(action.kind));
  key.add(static_cast<uint64_t>(action.unit));
  for (const UnitParameters& parameters : {call.parameters, call.head_matrix}) {
    key.add(parameters.weights);
    key.add(parameters.norms);
    key.add(parameters.gradients);
  }
  for (const std::byte* place : {call.input, call.output, call.saved_for_input, call.saved_for_weight, call.gradients,
                                 call.d_output, call.d_input, call.fp8_weights})
    key.add(place);
  key.add(call.tokens);
  key.add(static_cast<uint64_t>(call.accumulate));
  key.add(static_cast<uint64_t>(call.prepare_weights));
  return key;
}

}  // namespace

template <typename Ops>
void Executor::compute(const Action& action, const Ops& ops) {
  const LayerCall call = call_of(action);
  if (place_.groups->exchange_amid_ops()) return ops(call);
  place_.backend->run_recorded(recording_key(this, action, call), [&] { ops(call); });
}

void Executor::run(const Action& action, MicroBatchSource& source) {
  const auto backward = [&](BackwardPart part) {
    compute(action, [&](const LayerCall& call) { model_.layer(action.unit).backward(call, part); });
  };
  switch (action.kind) {
    case ActionKind::load:
      return upload_micro_batch(action, source);
    case ActionKind::forward:
      return compute(action, [&](const LayerCall& call) { model_.layer(action.unit).forward(call); });
    case ActionKind::recompute:
      return compute(action, [&](const LayerCall& call) { model_.layer(action.unit).recompute(call); });
    case ActionKind::loss:
      return compute(action, [&](const LayerCall& call) { model_.head().loss(call); });
    case ActionKind::evaluate:
      return compute(action, [&](const LayerCall& call) { model_.head().evaluate(call); });
    case ActionKind::backward_input:
      return backward(BackwardPart::input);
    case ActionKind::backward_weight:
      return backward(BackwardPart::weight);
    case ActionKind::backward:
      return backward(BackwardPart::both);
    case ActionKind::gather:
      (*place_.gathers)[static_cast<size_t>(action.unit)] =
          begin_gather(parameters_, action.unit, at(action, Operand::weights), *place_.groups, *place_.backend);
      return;
    case ActionKind::await_weights:
      return place_.groups->lane(LaneKind::weights).wait((*place_.gathers)[static_cast<size_t>(action.unit)]);
    case ActionKind::reduce:
      return reduce(action);
    case ActionKind::await_gradients:
      return await_gradients(action);
    case ActionKind::send_output:
    case ActionKind::await_output_sent:
    case ActionKind::receive_input:
    case ActionKind::await_input:
    case ActionKind::send_d_input:
    case ActionKind::await_d_input_sent:
    case ActionKind::receive_d_output:
    case ActionKind::await_d_output:
      return transfer(action);
    case ActionKind::sum_tied:
      return sum_tied();
    case ActionKind::norm:
      return update_->norm();
    case ActionKind::update:
      return update_->update(action.unit);
  }
}

void Executor::transfer(const Action& action) {
  const Transfer transfer = transfer_of(action.kind).value();
  const StageMessage message = message_of(program_.schedule.options.stages, action.kind, action.micro_batch, action.unit);
  const DType dtype = model_.shape().precision.residual;
  // What lies behind a gradient for FP8 goes with it.
  const bool with_amax = message.gradient && model_.carrier_bytes() > model_.stream_bytes();
  links_.play(transfer, message,
                  {.data = at(action, transfer.operand),
                   .count = with_amax ? model_.carrier_bytes() / dtype_bytes(dtype) : model_.stream_elements(),
                   .dtype = dtype,
                   .alike = !with_amax && !model_.splits_rows()});
}

// Of the table, what this rank has the sum of: the same part on both stages, whose layouts of the unit are equal.
void Executor::sum_tied() {
  const UpdateRange held = parameters_.update_range(0);
  Lane& lane = place_.groups->lane(LaneKind::gradients);
  for (const Reduction& sum : parameters_.layout().units[0].reductions) {
    if (sum.group != ReductionGroup::tied) continue;
    const int64_t first = std::max(sum.first, held.first);
    const int64_t end = std::min(sum.first + sum.count, held.first + held.elements);
    if (first < end) {
      lane.all_reduce(place_.groups->group(LaneKind::gradients, kind_of(sum.group)),
                      held.gradients + first - held.first, end - first, DType::f32);
    }
  }
  lane.wait_all();
}

void Executor::upload_micro_batch(const Action& action, MicroBatchSource& source) {
  const StepShape& shape = model_.shape();
  const MicroBatch device = micro_batch(action);
  if (place_.uploads != nullptr) return place_.uploads->upload(source, device);
  const MicroBatch& host = source.next();
  const int64_t token_bytes = shape.rows() * static_cast<int64_t>(sizeof(int32_t));
  Backend& backend = *place_.backend;
  backend.upload(device.tokens, host.tokens, token_bytes);
  backend.upload(device.targets, host.targets, token_bytes);
  backend.upload(device.sample_ids, host.sample_ids, shape.batch * static_cast<int64_t>(sizeof(int64_t)));
  if (shape.mask_documents) backend.upload(device.document_starts, host.document_starts, token_bytes);
}

Lane::Ticket begin_gather(const ParameterStore& parameters, int64_t unit, std::byte* gathered,
                                      RankGroups& groups, Backend& backend) {
  if (parameters.piece_elements(unit) == 0) return Lane::done;
  Lane& lane = groups.lane(LaneKind::weights);
  Communicator* const data = groups.group(LaneKind::weights, GroupKind::copies);
  const UnitParameters whole = parameters.whole(unit, gathered);
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

void Executor::reduce(const Action& action) {
  const int64_t unit = action.unit;
  Lane& lane = place_.groups->lane(LaneKind::gradients);
  Lane::Ticket& ticket = sums_[static_cast<size_t>(unit)];
  auto* const gradients = reinterpret_cast<float*>(whole(unit, action).gradients);
  const Sharding& sharding = parameters_.sharding();
  ticket = Lane::done;
  for (const Reduction& sum : parameters_.layout().units[static_cast<size_t>(unit)].reductions) {
    if (sum.group == ReductionGroup::tied) continue;
    Communicator* const group = place_.groups->group(LaneKind::gradients, kind_of(sum.group));
    const bool in_pieces = sum.group == ReductionGroup::data;
    if (in_pieces && sharding.narrows_gradients()) {
      // The sums over tensor ranks are f32 and come before the rounding.
      lane.wait(ticket);
      ticket = reduce_narrow(action);
    } else if (in_pieces && sharding.zero > 0) {
      const int64_t piece = parameters_.piece_elements(unit);
      ticket = std::max(ticket, lane.reduce_scatter(group, gradients, gradients + sharding.data_rank * piece, piece,
                                                      DType::f32));
    } else {
      ticket = std::max(ticket, lane.all_reduce(group, gradients + sum.first, sum.count, DType::f32));
    }
  }
}

Lane::Ticket Executor::reduce_narrow(const Action& action) {
  const Sharding& sharding = parameters_.sharding();
  const int64_t piece = parameters_.piece_elements(action.unit);
  std::byte* const bucket = at(action, Operand::narrow_gradients);
  place_.backend->run(Cast{.from = Matrix(whole(action.unit, action).gradients, DType::f32, sharding.data_size, piece),
                    .to = Matrix(bucket, sharding.reduce, sharding.data_size, piece)});
  Lane& lane = place_.groups->lane(LaneKind::gradients);
  Communicator* const data = place_.groups->group(LaneKind::gradients, GroupKind::copies);
  if (sharding.zero == 0) return lane.all_reduce(data, bucket, piece * sharding.data_size, sharding.reduce);
  std::byte* const own = bucket + sharding.data_rank * piece * dtype_bytes(sharding.reduce);
  return lane.reduce_scatter(data, bucket, own, piece, sharding.reduce);
}

// Puts a sum back where the gradients are, as f32: with ZeRO 0 all of the unit, else this rank's piece.
void Executor::widen(const Action& action) {
  const Sharding& sharding = parameters_.sharding();
  const int64_t piece = parameters_.piece_elements(action.unit);
  const int64_t pieces = sharding.zero == 0 ? sharding.data_size : 1;
  const int64_t first = sharding.zero == 0 ? 0 : sharding.data_rank * piece;
  std::byte* const sum = at(action, Operand::narrow_gradients) + first * dtype_bytes(sharding.reduce);
  std::byte* const gradients = whole(action.unit, action).gradients + first * dtype_bytes(DType::f32);
  place_.backend->run(
      Cast{.from = Matrix(sum, sharding.reduce, pieces, piece), .to = Matrix(gradients, DType::f32, pieces, piece)});
}

void Executor::await_gradients(const Action& action) {
  place_.groups->lane(LaneKind::gradients).wait(sums_[static_cast<size_t>(action.unit)]);
  if (parameters_.sharding().narrows_gradients()) widen(action);
  if (program_.schedule.options.zero < 2) return;
  const int64_t piece = parameters_.piece_elements(action.unit);
  auto* const gradients = reinterpret_cast<float*>(whole(action.unit, action).gradients);
  const Matrix from(gradients + parameters_.sharding().data_rank * piece, DType::f32, 1, piece);
  const Matrix to(parameters_.gradients_piece(action.unit), DType::f32, 1, piece);
  if (action.micro_batch == 0) {
    place_.backend->run(Cast{.from = from, .to = to});
  } else {
    place_.backend->run(Add{.from = from, .to = to});
  }
}

}  // namespace gptrain
