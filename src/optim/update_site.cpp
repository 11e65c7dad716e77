#include "optim/update_site.h"

namespace gptrain::inline optim {

void UpdateSite::pass_state() const {
  if (updates.state == ops.state) return;
  StepState state;
  ops.backend.download(&state, ops.state, sizeof state);
  ops.backend.synchronize();
  updates.backend.upload(updates.state, &state, sizeof state);
}

void UpdateSite::begin(int64_t unit) const {
  if (away != nullptr) away->fetch(unit);
}

void UpdateSite::end(int64_t unit) const {
  if (&updates.backend != &ops.backend) updates.backend.synchronize();
  if (away != nullptr) away->put_back(unit);
}

}  // namespace gptrain::optim
