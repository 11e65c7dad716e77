#include "train/step_profiler.h"

#include <utility>

namespace gptrain {

void StepProfiler::start() {
  actions_.clear();
  backend_.start_timing();
  if (stream_ != nullptr) stream_->start_recording();
  start_seconds_ = steady_seconds();
}

StepProfile StepProfiler::finish(int64_t step, double data_seconds, const MachineLimits& limits) {
  const double end_seconds = steady_seconds();
  StepProfile profile{.step = step,
                      .compute = limits.compute,
                      .matrix_flops = limits.matrix_flops,
                      .bytes_per_second = limits.bytes_per_second,
                      .start_seconds = start_seconds_,
                      .end_seconds = end_seconds,
                      .data_seconds = data_seconds,
                      .actions = std::exchange(actions_, {}),
                      .ops = {"ops", backend_.take_events()},
                      .waits = {"waits", {}},
                      .collectives = {"collectives", {}}};
  if (stream_ != nullptr) {
    CollectiveStream::Recording recording = stream_->take_recording();
    profile.waits.events = std::move(recording.waits);
    profile.collectives.events = std::move(recording.collectives);
  }
  return profile;
}

bool StepProfiler::before(const Action& action) {
  backend_.set_recomputing(action.kind == ActionKind::recompute);
  action_start_seconds_ = steady_seconds();
  return true;
}

void StepProfiler::after(const Action& action) {
  backend_.set_recomputing(false);
  actions_.push_back({action, action_start_seconds_, steady_seconds()});
}

}  // namespace gptrain
