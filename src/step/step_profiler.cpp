#include "step/step_profiler.h"

#include <utility>

namespace gptrain::inline step {

StepProfiler::StepProfiler(Backend& backend, RankGroups& groups) : groups_(groups), backend_(backend, log_) {
  groups_.set_log(&log_);
}

void StepProfiler::start() {
  actions_.clear();
  ends_.clear();
  times_.clear();
  log_.start();
  first_event_ = log_.end();
  start_seconds_ = steady_seconds();
}

StepProfile StepProfiler::finish(int64_t step, double data_seconds, const MachineLimits& limits, const Stages& stages) {
  const double end_seconds = steady_seconds();
  log_.stop();
  groups_.wait_all();
  StepProfile profile{.rank = groups_.rank(),
                      .step = step,
                      .compute = limits.compute,
                      .matrix_flops = limits.matrix_flops,
                      .bytes_per_second = limits.bytes_per_second,
                      .start_seconds = start_seconds_,
                      .end_seconds = end_seconds,
                      .data_seconds = data_seconds,
                      .log = {.stages = stages},
                      .action_times = std::exchange(times_, {})};
  StepLog& log = profile.log;
  log.before = log_.take(first_event_);
  log.actions = std::exchange(actions_, {});
  for (size_t i = 0; i < log.actions.size(); ++i) {
    log.actions[i].block = static_cast<int32_t>(i);
    log.blocks.push_back(log_.take(ends_[i]));
  }
  log.after = log_.take(log_.end());
  return profile;
}

bool StepProfiler::before(const Action& action) {
  if (ends_.empty()) first_event_ = log_.end();
  log_.set_recomputing(is_recomputation(action.kind));
  action_start_seconds_ = steady_seconds();
  return true;
}

void StepProfiler::after(const Action& action) {
  log_.set_recomputing(false);
  actions_.push_back({action.kind, action.micro_batch, action.unit});
  ends_.push_back(log_.end());
  times_.push_back({action_start_seconds_, steady_seconds()});
}

}  // namespace gptrain::step
