// Times one step event by event and action by action.
#pragma once

#include <cstdint>
#include <vector>

#include "base/event_log.h"
#include "ops/timed_backend.h"
#include "parallel/action_observer.h"
#include "parallel/groups.h"
#include "step/machine_limits.h"
#include "step/step_profile.h"

namespace gptrain::inline step {

// REQUIRES: the step runs on `backend()` with this object as its observer. Between `finish` and the next `start` this
// costs one branch per op.
class StepProfiler final : public ActionObserver {
 public:
  // Borrows the backend and the groups, whose lanes then write to this object's log.
  StepProfiler(Backend& backend, RankGroups& groups);
  ~StepProfiler() { groups_.set_log(nullptr); }
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  Backend& backend() { return backend_; }

  // Call right before the step.
  void start();
  // Waits for the lanes and returns the profile. Call right after the step. `data_seconds`: time of the step spent
  // waiting for data; `stages`: StepDesign::stages.
  StepProfile finish(int64_t step, double data_seconds, const MachineLimits& limits, const Stages& stages);

  // Begins or ends a save: copies in between are logged as "save_copy".
  void set_saving(bool saving) { log_.name_copies(saving ? "save_copy" : ""); }

  bool before(const Action& action) override;
  void after(const Action& action) override;

 private:
  RankGroups& groups_;
  EventLog log_;
  TimedBackend backend_;
  double start_seconds_ = 0;
  double action_start_seconds_ = 0;
  int64_t first_event_ = 0;  // number of the first action's first event
  std::vector<LoggedAction> actions_;
  std::vector<int64_t> ends_;  // by action: number of the event after its last one
  std::vector<TimeSpan> times_;
};

}  // namespace gptrain::step
