// Times one step op by op and action by action.
#pragma once

#include <vector>

#include "ops/timed_backend.h"
#include "parallel/executor.h"
#include "parallel/groups.h"
#include "report/step_profile.h"
#include "train/machine_limits.h"

namespace gptrain {

// The step must run on `backend()` and be observed by this object. Between `finish` and the next `start` neither costs
// more than a branch per op.
class StepProfiler final : public ActionObserver {
 public:
  explicit StepProfiler(Backend& backend) : backend_(backend) {}  // borrowed
  // Of ranks that exchange something; borrowed.
  void set_lanes(RankGroups& groups);

  Backend& backend() { return backend_; }

  void start();  // right before the step
  // Right after it. `data_seconds`: of the step, waiting for data.
  StepProfile finish(int64_t step, double data_seconds, const MachineLimits& limits);

  bool before(const Action& action) override;
  void after(const Action& action) override;

 private:
  TimedBackend backend_;
  std::vector<Lane*> lanes_;
  double start_seconds_ = 0;
  double action_start_seconds_ = 0;
  std::vector<TimedAction> actions_;
};

}  // namespace gptrain
