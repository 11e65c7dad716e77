#include "parallel/executor.h"

namespace gptrain {

Executor::Executor(Units& units, const ParameterLayout& layout, const Schedule& schedule, ArenaMemory arenas,
                   Workspace& workspace, Backend& backend, Communicator& data_group, UpdateRule* update)
    : units_(units),
      layout_(layout),
      schedule_(schedule),
      slots_(units, schedule),
      arenas_(arenas),
      workspace_(workspace),
      backend_(backend),
      data_group_(data_group),
      update_(update) {}

void Executor::play(MicroBatchSource& source, ActionObserver* observer) {
  for (const Action& action : schedule_.actions) {
    if (observer != nullptr && !observer->before(action)) continue;
    run(action, source);
    if (observer != nullptr) observer->after(action);
  }
}

void Executor::run(const Action& action, MicroBatchSource& source) {
  UnitCall call = slots_.call(action, arenas_.activations, arenas_.data);
  call.state = arenas_.state;
  call.workspace = &workspace_;
  call.accumulate = action.micro_batch > 0;
  switch (action.kind) {
    case ActionKind::forward:
      if (action.unit == 0) {
        const StepShape& shape = units_.shape();
        const MicroBatch& host = source.next();
        const MicroBatch device = slots_.micro_batch(action, arenas_.data);
        const int64_t token_bytes = shape.rows() * static_cast<int64_t>(sizeof(int32_t));
        backend_.upload(device.tokens, host.tokens, token_bytes);
        backend_.upload(device.targets, host.targets, token_bytes);
        backend_.upload(device.sample_ids, host.sample_ids, shape.batch * static_cast<int64_t>(sizeof(int64_t)));
      }
      units_.forward(action.unit, call);
      return;
    case ActionKind::recompute:
      units_.recompute(action.unit, call);
      return;
    case ActionKind::loss:
      units_.loss(call);
      return;
    case ActionKind::evaluate:
      units_.evaluate(call);
      return;
    case ActionKind::backward_input:
      units_.backward_input(action.unit, call);
      return;
    case ActionKind::backward_weight:
      units_.backward_weight(action.unit, call);
      return;
    case ActionKind::reduce: {
      const UnitRange& range = layout_.units[static_cast<size_t>(action.unit)];
      data_group_.all_reduce(arenas_.gradients + range.offset * dtype_bytes(DType::f32), range.elements, DType::f32,
                             ReduceOp::sum);
      return;
    }
    case ActionKind::norm:
      update_->norm();
      return;
    case ActionKind::update:
      update_->update(action.unit);
      return;
  }
}

}  // namespace gptrain
