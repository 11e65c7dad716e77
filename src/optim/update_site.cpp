#include "optim/update_site.h"

#include "base/dtype.h"
#include "base/event_log.h"
#include "ops/op_event.h"
#include "parallel/parameter_exchange.h"

namespace gptrain::inline optim {

void UpdateSite::pass_state() const {
  if (lane != nullptr) lane->drain();
  if (updates.state == ops.state) return;
  StepState state;
  ops.backend.download(&state, ops.state, sizeof state);
  ops.backend.synchronize();
  updates.backend.upload(updates.state, &state, sizeof state);
}

void UpdateSite::end_measuring() const {
  if (updates.away != nullptr) updates.away->release();
}

// Logs a copy of the unit's gradients to the host, or of its updated weights back, if these are not away.
void UpdateSite::log_copy(int64_t unit, bool writes) const {
  EventLog* const log = updates.groups.log();
  const Sharding& sharding = updates.parameters.sharding();
  const bool copies = lane->beside_device() && !(writes ? sharding.gradients_away : sharding.weights_away());
  if (!copies || log == nullptr || !log->on()) return;
  const DType dtype = writes ? sharding.gradients : sharding.compute;
  log->add(host_event(writes, updates.parameters.update_range(unit).elements * dtype_bytes(dtype)));
}

void UpdateSite::pass_gradients(int64_t unit) const {
  if (!ops.parameters.sharding().updates_delayed) return;
  const Matrix from = ops.parameters.gradients_of_range(unit);
  if (from.cols > 0)
    ops.backend.run(
        Cast{.from = from, .to = Matrix(ops.parameters.update_range(unit).gradients, from.dtype, 1, from.cols)});
}

void UpdateSite::begin(int64_t unit) const {
  if (lane == nullptr) return;
  lane->begin(unit);
  log_copy(unit, true);
}

void UpdateSite::end(int64_t unit) const {
  copy_norms(updates.parameters, unit, updates.backend);
  if (lane != nullptr) {
    log_copy(unit, false);
    lane->end(unit);
  } else if (&updates.backend != &ops.backend) {
    updates.backend.synchronize();
  }
}

}  // namespace gptrain::optim
