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
  if (lane != nullptr) lane->begin(unit);
}

void UpdateSite::end(int64_t unit) const {
  copy_norms(updates.parameters, unit, updates.backend);
  if (lane != nullptr) {
    lane->end(unit);
  } else if (&updates.backend != &ops.backend) {
    updates.backend.synchronize();
  }
}

}  // namespace gptrain::optim
