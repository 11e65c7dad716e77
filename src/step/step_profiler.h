// Times one step event by event and action by action.
#pragma once

#include <cstdint>
#include <vector>

#include "base/event_log.h"
#include "ops/timed_backend.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "step/step_profile.h"
#include "step/machine_limits.h"

namespace gptrain {

// The step must run on `backend()` and be observed by this object. Between `finish` and the next `start` neither costs
// more than a branch per op.
class StepProfiler final : public ActionObserver {
 public:
  // Borrows both, and has the groups' lanes write to its log.
  StepProfiler(Backend& backend, RankGroups& groups);
  ~StepProfiler() { groups_.set_log(nullptr); }
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;

  Backend& backend() { return backend_; }

  void start();  // right before the step
  // Right after it. Waits for what is still on the lanes. `data_seconds`: of the step, waiting for data; `stages`: of
  // its design.
  StepProfile finish(int64_t step, double data_seconds, const MachineLimits& limits,
                     const Stages& stages);

  // From here on copies are part of a save, or no longer.
  void set_saving(bool saving) { log_.name_copies(saving ? "save_copy" : ""); }

  bool before(const Action& action) override;
  void after(const Action& action) override;

 private:
  RankGroups& groups_;
  EventLog log_;
  TimedBackend backend_;
  double start_seconds_ = 0;
  double action_start_seconds_ = 0;
  int64_t first_event_ = 0;  // of the first action
  std::vector<LoggedAction> actions_;
  std::vector<int64_t> ends_;  // by action: the number of the event after its last one
  std::vector<TimeSpan> times_;
};

}  // namespace gptrain
