#include "optim/update_site.h"

#include "base/dtype.h"
#include "parallel/parameter_exchange.h"

namespace gptrain::inline optim {

void sum_over_world(RankGroups& groups, const Matrix& sums) {
  Lane& lane = groups.lane(LaneKind::gradients);
  lane.all_reduce(groups.group(LaneKind::gradients, GroupKind::world), sums.data, sums.count(), sums.dtype);
  lane.wait_all();
}

void UpdateSite::pass_state() const {
  if (lane != nullptr) lane->drain();
  if (updates.state == ops.state) return;
  StepState state;
  ops.backend.download(&state, ops.state, sizeof state);
  ops.backend.synchronize();
  updates.backend.upload(updates.state, &state, sizeof state);
}

// Updates on the host of a GPU add up sums over ranks in the GPU's memory, where the groups exchange all data.
void UpdateSite::sum(const Matrix& sums) const {
  if (!updates.on_host_of_gpu) return sum_over_world(updates.groups, sums);
  WorkspaceFrame frame(ops.workspace);
  const Matrix on_device = frame.take(sums.dtype, sums.rows, sums.cols);
  ops.backend.upload(on_device.data, sums.data, sums.bytes());
  sum_over_world(ops.groups, on_device);
  ops.backend.download(sums.data, on_device.data, sums.bytes());
  ops.backend.synchronize();
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
