#include "parallel/executor.h"

#include <exception>

#include "parallel/action_observer.h"
#include "parallel/micro_batch_uploads.h"
#include "parallel/offload_lanes.h"
#include "parallel/program.h"

namespace gptrain::inline parallel {

Executor::Executor(Model& model, const Program& program, const ParameterStore& parameters,
                   const ExecutorResources& resources, UpdateRule* update)
    : model_(model),
      program_(program),
      resources_(resources),
      parameters_(program, parameters, resources, update),
      links_(program.schedule.options.stages, *resources.groups) {}

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
  parameters_.begin();
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

StepStatistics Executor::statistics_of(ActionKind kind) const {
  StepStatistics statistics = resources_.statistics;
  statistics.first_pass = !is_recomputation(kind);
  return statistics;
}

LayerCall Executor::call_of(const Action& action) const {
  const ScheduleOptions& options = program_.schedule.options;
  const MicroBatch batch = micro_batch(action);
  const ActionParameters parameters = parameters_.parameters_of(action);
  LayerCall call{.parameters = parameters.own,
                 .head_matrix = parameters.head_matrix,
                 .tokens = batch.tokens,
                 .targets = batch.targets,
                 .sample_ids = batch.sample_ids,
                 .document_starts = batch.document_starts,
                 .state = resources_.state,
                 .statistics = statistics_of(action.kind),
                 .amax_forecast = resources_.amax_forecast,
                 .input = at(action, Operand::input),
                 .output = at(action, Operand::output),
                 .saved_for_recompute = at(action, Operand::saved_for_recompute),
                 .saved_for_input = at(action, Operand::saved_for_input),
                 .saved_for_weight = at(action, Operand::saved_for_weight),
                 .gradients = at(action, Operand::gradients),
                 .d_output = at(action, Operand::d_output),
                 .d_input = at(action, Operand::d_input),
                 .table_begun = options.tied_head && options.stages.last(),
                 .accumulate = parameters_.accumulates(action),
                 .fp8_weights = at(action, Operand::prepared_weights),
                 .prepare_weights = false,
                 .workspace = resources_.workspace,
                 .experts = parameters.experts};
  if (const int32_t prepared = action[Operand::prepared_weights]; prepared >= 0) {
    // The first action that names the copies makes them.
    const int32_t first = program_.schedule.buffers[prepared].first;
    call.prepare_weights = &action == &program_.schedule.actions[first];
  }
  return call;
}

namespace {

// Returns a key of everything that an action's ops depend on: the layer, the pass and the addresses of operands. The
// other parts of a micro-batch follow from the address of its tokens.
RecordingKey recording_key(const void* executor, const Action& action, const LayerCall& call) {
  const UnitParameters &own = call.parameters, &head = call.head_matrix;
  return RecordingKey(executor, action.kind, action.unit, own.weights, own.norms, own.gradients, head.weights,
                      head.norms, head.gradients, call.input, call.output, call.saved_for_recompute,
                      call.saved_for_input, call.saved_for_weight, call.gradients, call.d_output, call.d_input,
                      call.fp8_weights, call.tokens, call.accumulate, call.prepare_weights);
}

}  // namespace

template <typename Ops>
void Executor::compute(const Action& action, const Ops& ops) {
  parameters_.prepare(action);
  const LayerCall call = call_of(action);
  if (model_.layer(action.unit).exchanges_amid_ops()) return ops(call);
  resources_.backend->run_recorded(recording_key(this, action, call), [&] { ops(call); });
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
    case ActionKind::recompute_output:
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
    default:
      return parameters_.play(action);
  }
}

void Executor::transfer(const Action& action) {
  const Transfer transfer = transfer_of(action.kind).value();
  const StageMessage message =
      message_of(program_.schedule.options.stages, action.kind, action.micro_batch, action.unit);
  const DType dtype = model_.shape().precision.residual;
  // If the layer that reads the gradient wants its amax, that lies behind its elements and is sent with them.
  int64_t bytes = model_.stream_bytes();
  if (message.gradient)
    bytes = model_.stream_gradient_bytes(program_.schedule.options.stages.first_unit(message.chunk) - 1);
  const bool with_amax = bytes > model_.stream_bytes();
  links_.play(transfer, message,
              {.data = at(action, transfer.operand),
               .count = with_amax ? bytes / dtype_bytes(dtype) : model_.stream_elements(),
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
