#include "step/step_readback.h"

#include <new>
#include <stdexcept>

#include "base/event.h"

namespace gptrain::inline step {

StepReadback::StepReadback(Backend& backend, SideQueue* copy_queue)
    : backend_(backend),
      copy_queue_(copy_queue),
      pinned_(copy_queue != nullptr ? copy_queue->allocate_host(most_ahead * sizeof(Copied)) : nullptr),
      copied_(copy_queue != nullptr ? new (pinned_->data()) Copied[most_ahead] : here_.data()) {}

void StepReadback::begin() {
  if (ahead() == most_ahead) throw std::logic_error("a step begins before an earlier one is read");
  const auto place = static_cast<size_t>(queued_ % most_ahead);
  follows_[place] = ahead() > 0;
  if (copy_queue_ != nullptr) {
    copy_queue_->time_ops(start_of(queued_));
  } else {
    host_seconds_[place] = steady_seconds();
  }
}

void StepReadback::queue(const StepState* state, const double* stops) {
  Copied& copied = at(queued_);
  if (copy_queue_ != nullptr) {
    copy_queue_->copy_among_ops(&copied.state, state, sizeof copied.state);
    copy_queue_->copy_among_ops(&copied.stops, stops, sizeof copied.stops);
    copy_queue_->time_ops(end_of(queued_));
    copy_queue_->mark_ops(end_of(queued_));
  } else {
    backend_.download(&copied.state, state, sizeof copied.state);
    backend_.download(&copied.stops, stops, sizeof copied.stops);
    double& seconds = host_seconds_[static_cast<size_t>(queued_ % most_ahead)];
    seconds = steady_seconds() - seconds;
  }
  ++queued_;
}

StepReadback::Values StepReadback::read() {
  if (ahead() == 0) throw std::logic_error("no step is queued");
  const int64_t step = read_++;
  const auto place = static_cast<size_t>(step % most_ahead);
  Values values;
  if (copy_queue_ != nullptr) {
    copy_queue_->await_ops(end_of(step));
    const int from = follows_[place] ? end_of(step + most_ends - 1) : start_of(step);
    values.seconds = copy_queue_->seconds_between(from, end_of(step));
  } else {
    values.seconds = host_seconds_[place];
  }
  values.state = at(step).state;
  values.stops = at(step).stops;
  return values;
}

}  // namespace gptrain::step
