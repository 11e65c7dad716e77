#include "parallel/executor.h"

#include <exception>
#include <fmt/format.h>
#include <stdexcept>

#include "parallel/low_rank_reducer.h"

namespace gptrain::inline parallel {
namespace {

ParameterExchange::ReducerMaker reducer_maker(const GradientCompression* compression) {
  if (compression == nullptr) return make_reducer;
  return [compression](const ReductionContext& context, ReplicaGroup) {
    return compression->messages.is_low_rank() ? make_low_rank_reducer(context, *compression)
                                               : make_compressed_reducer(context, *compression);
  };
}

}  // namespace

Executor::Executor(Model& model, const Program& program, const ParameterStore& parameters,
                   const ExecutorResources& resources, UpdateRule* update)
    : model_(model),
      program_(program),
      parameters_(parameters),
      resources_(resources),
      exchange_(parameters, *resources.groups, *resources.backend, resources.accumulated,
                reducer_maker(resources.compression)),
      links_(program.schedule.options.stages, *resources.groups),
      update_(update) {
  for (const Action& action : program.schedule.actions)
    if (action.kind == ActionKind::gather) gathered_units_.push_back(action.unit);
}

void Executor::play(MicroBatchSource& source, ActionObserver* observer) {
  try {
    play_all(source, observer);
  } catch (...) {
    // Otherwise a receive that began early would be awaited for ever.
    if (resources_.groups->num_stages() > 1) resources_.groups->give_up(std::current_exception());
    throw;
  }
}

void Executor::play_all(MicroBatchSource& source, ActionObserver* observer) {
  // Stages are at different micro-batches: after a failure, each rank's tells which stage waited for which.
  Activity* const activity = resources_.groups->num_stages() > 1 ? resources_.groups->activity() : nullptr;
  if (resources_.weight_reads != nullptr) resources_.weight_reads->begin(gathered_units_);
  for (const Action& action : program_.schedule.actions) {
    if (observer != nullptr && !observer->before(action)) continue;
    if (activity != nullptr) activity->set_micro_batch(action.micro_batch);
    run(action, source);
    if (observer != nullptr) observer->after(action);
  }
}

std::byte* Executor::at(const Action& action, Operand operand) const {
  return program_.address(action, operand, resources_.arenas);
}

MicroBatch Executor::micro_batch(const Action& action) const {
  if (action[Operand::batch] < 0) return {};
  return MicroBatch::at(at(action, Operand::batch), model_.shape().micro_batch());
}

Executor::Part Executor::own_part(const Action& action) const {
  return {.unit = action.unit,
          .weights = at(action, Operand::weights),
          .whole_gradients = at(action, Operand::whole_gradients),
          .narrow_gradients = at(action, Operand::narrow_gradients)};
}

std::optional<Executor::Part> Executor::experts_part(const Action& action) const {
  const int64_t experts = parameters_.spec().units[static_cast<size_t>(action.unit)].experts;
  if (experts < 0) return std::nullopt;
  Part part = own_part(action);
  part.unit = experts;
  const UnitRange& own = parameters_.layout().units[static_cast<size_t>(action.unit)];
  const UnitBufferBytes before = unit_buffer_bytes(own, parameters_.sharding());
  if (part.weights != nullptr) part.weights += before.weights;
  if (part.whole_gradients != nullptr) part.whole_gradients += before.whole_gradients;
  if (part.narrow_gradients != nullptr) part.narrow_gradients += before.narrow_gradients;
  return part;
}

template <typename Body>
void Executor::for_each_part(const Action& action, const Body& body) const {
  body(own_part(action));
  if (const std::optional<Part> experts = experts_part(action)) body(*experts);
}

StepStatistics Executor::statistics_of(ActionKind kind) const {
  StepStatistics statistics = resources_.statistics;
  statistics.first_pass = !is_recomputation(kind);
  return statistics;
}

int64_t Executor::matrix_unit() const { return program_.schedule.options.tied_head ? 0 : model_.num_layers() - 1; }

void Executor::await_updates(const Action& action) {
  if (update_ == nullptr) return;
  for_each_part(action, [this](const Part& part) { update_->await_update(part.unit); });
  if (action.unit + 1 == model_.num_layers()) update_->await_update(matrix_unit());
}

LayerCall Executor::call_of(const Action& action) const {
  const ScheduleOptions& options = program_.schedule.options;
  const MicroBatch batch = micro_batch(action);
  const Part own = own_part(action);
  Part of_matrix = own;
  of_matrix.unit = matrix_unit();
  const std::optional<Part> experts = experts_part(action);
  LayerCall call{.parameters = whole(own),
                 .head_matrix = whole(of_matrix),
                 .tokens = batch.tokens,
                 .targets = batch.targets,
                 .sample_ids = batch.sample_ids,
                 .document_starts = batch.document_starts,
                 .state = resources_.state,
                 .statistics = statistics_of(action.kind),
                 .input = at(action, Operand::input),
                 .output = at(action, Operand::output),
                 .kept = at(action, Operand::kept),
                 .saved_for_input = at(action, Operand::saved_for_input),
                 .saved_for_weight = at(action, Operand::saved_for_weight),
                 .gradients = at(action, Operand::gradients),
                 .d_output = at(action, Operand::d_output),
                 .d_input = at(action, Operand::d_input),
                 .table_begun = options.tied_head && options.stages.last(),
                 // Gradients with a buffer of their own are moved out of it after every micro-batch.
                 .accumulate = action.micro_batch > 0 &&
                               (!options.has_gradient_buckets() || parameters_.sharding().buckets_hold_sums()),
                 .fp8_weights = at(action, Operand::prepared_weights),
                 .prepare_weights = false,
                 .workspace = resources_.workspace,
                 .experts = experts ? whole(*experts) : UnitParameters{}};
  if (const int32_t prepared = action[Operand::prepared_weights]; prepared >= 0) {
    // The first action that names the copies makes them.
    const int32_t first = program_.schedule.buffers[static_cast<size_t>(prepared)].first;
    call.prepare_weights = &action == &program_.schedule.actions[static_cast<size_t>(first)];
  }
  return call;
}

namespace {

// Returns a key of everything that an action's ops depend on: the layer, the pass and the addresses of operands. The
// other parts of a micro-batch follow from the address of its tokens.
RecordingKey recording_key(const void* executor, const Action& action, const LayerCall& call) {
  const UnitParameters &own = call.parameters, &head = call.head_matrix;
  return RecordingKey(executor, action.kind, action.unit, own.weights, own.norms, own.gradients, head.weights,
                      head.norms, head.gradients, call.input, call.output, call.kept, call.saved_for_input,
                      call.saved_for_weight, call.gradients, call.d_output, call.d_input, call.fp8_weights, call.tokens,
                      call.accumulate, call.prepare_weights);
}

}  // namespace

template <typename Ops>
void Executor::compute(const Action& action, const Ops& ops) {
  await_updates(action);
  load_sum(action);
  const LayerCall call = call_of(action);
  if (model_.layer(action.unit).exchanges_amid_ops()) return ops(call);
  resources_.backend->run_recorded(recording_key(this, action, call), [&] { ops(call); });
}

void Executor::gather(const Action& action) {
  await_updates(action);
  for_each_part(action, [this](const Part& part) {
    if (resources_.weight_reads != nullptr) resources_.weight_reads->fetch(part.unit);
    Lane::Ticket& ticket = (*resources_.gathers)[static_cast<size_t>(part.unit)];
    ticket = begin_gather(parameters_, part.unit, part.weights, *resources_.groups, *resources_.backend);
    if (resources_.weight_reads != nullptr) resources_.weight_reads->release(part.unit, ticket);
  });
}

// Fills a bucket that the action is the first to write with the sum of earlier micro-batches, if it is away.
void Executor::load_sum(const Action& action) {
  const int32_t bucket = action[Operand::whole_gradients];
  if (bucket < 0 || action.micro_batch == 0 || !parameters_.sharding().buckets_hold_sums()) return;
  const Buffer& buffer = program_.schedule.buffers[static_cast<size_t>(bucket)];
  if (&action != &program_.schedule.actions[static_cast<size_t>(buffer.first)]) return;
  resources_.away_gradients->load(buffer.unit, at(action, Operand::whole_gradients));
}

void Executor::await_gradients(const Part& part, int32_t micro_batch) {
  const ParameterExchange::Gradients gradients = gradients_of(part);
  exchange_.await_sum(part.unit, gradients, micro_batch);
  AwayGradients* const away = resources_.away_gradients;
  if (away == nullptr) return;
  away->take(part.unit, gradients.whole, micro_batch);
  if (micro_batch + 1 == program_.schedule.options.micro_batches) update_->measure(part.unit);
  away->write(part.unit);
}

void Executor::keep_gradients(const Part& part, int32_t micro_batch) {
  const ParameterExchange::Gradients gradients = gradients_of(part);
  if (resources_.away_gradients == nullptr) return exchange_.keep(part.unit, gradients, micro_batch);
  resources_.away_gradients->take(part.unit, gradients.whole, micro_batch);
  resources_.away_gradients->write(part.unit);
}

// Adds the gradients of the other stage that has the table.
void Executor::sum_tied() {
  AwayGradients* const away = resources_.away_gradients;
  if (away == nullptr) return exchange_.sum_tied();
  away->read(0);
  exchange_.sum_tied();
  update_->measure(0);
  away->write(0);
}

void Executor::run(const Action& action, MicroBatchSource& source) {
  if (transfer_of(action.kind)) return transfer(action);
  if (copies_record(action.kind)) return resources_.offloads->play(action, program_.record(action, resources_.arenas));
  const auto backward = [&](BackwardPart part) {
    compute(action, [&](const LayerCall& call) { model_.layer(action.unit).backward(call, part); });
  };
  switch (action.kind) {
    case ActionKind::load:
      return upload_micro_batch(action, source);
    case ActionKind::forward:
    case ActionKind::forward_again:
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
      return gather(action);
    case ActionKind::await_weights:
      return for_each_part(action, [this](const Part& part) {
        resources_.groups->lane(LaneKind::weights).wait((*resources_.gathers)[static_cast<size_t>(part.unit)]);
      });
    case ActionKind::sum_tied:
      return sum_tied();
    case ActionKind::norm:
      if (resources_.away_gradients != nullptr) resources_.away_gradients->finish();
      return update_->norm();
    case ActionKind::update:
      return for_each_part(action, [this](const Part& part) {
        update_->update(part.unit);
        exchange_.end_step(part.unit);
      });
    default:
      return sum(action);
  }
}

void Executor::sum(const Action& action) {
  for_each_part(action, [&](const Part& part) {
    switch (action.kind) {
      case ActionKind::reduce:
        return exchange_.begin_sum(part.unit, gradients_of(part));
      case ActionKind::reduce_on:
        return exchange_.go_on_with_sum(part.unit, gradients_of(part));
      case ActionKind::await_gradients:
        return await_gradients(part, action.micro_batch);
      case ActionKind::keep_gradients:
        return keep_gradients(part, action.micro_batch);
      default:
        throw std::logic_error(fmt::format("nothing runs the action {}", action_name(action.kind)));
    }
  });
}

void Executor::transfer(const Action& action) {
  const Transfer transfer = transfer_of(action.kind).value();
  const StageMessage message =
      message_of(program_.schedule.options.stages, action.kind, action.micro_batch, action.unit);
  const DType dtype = model_.shape().precision.residual;
  // With FP8, the gradient's amax lies behind its elements and is sent with them.
  const bool with_amax = message.gradient && model_.stream_gradient_bytes() > model_.stream_bytes();
  links_.play(transfer, message,
              {.data = at(action, transfer.operand),
               .count = with_amax ? model_.stream_gradient_bytes() / dtype_bytes(dtype) : model_.stream_elements(),
               .dtype = dtype,
               .alike = !with_amax && !model_.splits_rows()});
}

void Executor::upload_micro_batch(const Action& action, MicroBatchSource& source) {
  const MicroBatchShape shape = model_.shape().micro_batch();
  const MicroBatch device = micro_batch(action);
  if (resources_.uploads != nullptr) return resources_.uploads->upload(source, device);
  copy_micro_batch(*resources_.backend, source.next(), device, shape);
}

}  // namespace gptrain::parallel
