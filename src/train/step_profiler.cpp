#include "train/step_profiler.h"

#include <algorithm>
#include <utility>

namespace gptrain {

void StepProfiler::set_lanes(RankGroups& groups) {
  for (size_t kind = 0; kind < num_lanes; ++kind) lanes_.push_back(&groups.lane(static_cast<LaneKind>(kind)));
}

void StepProfiler::start() {
  actions_.clear();
  backend_.start_timing();
  for (Lane* const lane : lanes_) lane->start_recording();
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
                      .lanes = {}};
  std::vector<TimedEvent>& waits = profile.waits.events;
  for (Lane* const lane : lanes_) {
    Lane::Recording recording = lane->take_recording();
    waits.insert(waits.end(), recording.waits.begin(), recording.waits.end());
    profile.lanes.push_back({"lane " + lane->name(), std::move(recording.items)});
  }
  std::sort(waits.begin(), waits.end(),
            [](const TimedEvent& a, const TimedEvent& b) { return a.start_seconds < b.start_seconds; });
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
