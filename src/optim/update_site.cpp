#include "optim/update_site.h"

#include "base/dtype.h"
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

void UpdateSite::pass_gradients(int64_t unit) const {
  if (!ops.parameters.sharding().updates_delayed) return;
  const Matrix from = ops.parameters.gradients_of_range(unit);
  if (from.cols > 0)
    ops.backend.run(
        Cast{.from = from, .to = Matrix(ops.parameters.update_range(unit).gradients, from.dtype, 1, from.cols)});
}

void UpdateSite::begin(int64_t unit) const {
  if (lane != nullptr && !runs_with_ops(unit)) lane->begin(unit);
}

// Rounds the masters to weights whose memory the lane has cleared, as an update that is skipped writes none.
void UpdateSite::keep_weights(int64_t unit) const {
  const bool clears = lane->beside_device() || updates.parameters.sharding().weights_away();
  if (clears) round_masters(updates.parameters, unit, updates.backend);
}

void UpdateSite::end(int64_t unit) const {
  if (runs_with_ops(unit)) return copy_norms(ops.parameters, unit, ops.backend);
  if (lane != nullptr && lane->runs_ops() && updates.state->skip != 0) keep_weights(unit);
  copy_norms(updates.parameters, unit, updates.backend);
  if (lane != nullptr) {
    lane->end(unit);
  } else if (&updates.backend != &ops.backend) {
    updates.backend.synchronize();
  }
}

}  // namespace gptrain::optim
