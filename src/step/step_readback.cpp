#include "step/step_readback.h"

#include <new>
#include <stdexcept>

#include "base/event.h"

namespace gptrain::inline step {

StepReadback::StepReadback(Backend& backend, SideQueue* copies)
    : backend_(backend),
      copies_(copies),
      pinned_(copies != nullptr ? copies->allocate_host(most_ahead * sizeof(Copied)) : nullptr),
      copied_(copies != nullptr ? new (pinned_->data()) Copied[most_ahead] : here_.data()) {}

void StepReadback::begin() {
  if (ahead() == most_ahead) throw std::logic_error("a step begins before an earlier one is read");
  const auto place = static_cast<size_t>(queued_ % most_ahead);
  follows_[place] = ahead() > 0;
  if (copies_ != nullptr) {
    copies_->time_ops(start_of(queued_));
  } else {
    host_seconds_[place] = steady_seconds();
  }
}

void StepReadback::queue(const StepState* state, const double* stops) {
  Copied& copied = at(queued_);
  if (copies_ != nullptr) {
    copies_->copy_among_ops(&copied.state, state, sizeof copied.state);
    copies_->copy_among_ops(&copied.stops, stops, sizeof copied.stops);
    copies_->time_ops(end_of(queued_));
    copies_->mark_ops(end_of(queued_));
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
  if (copies_ != nullptr) {
    copies_->await_ops(end_of(step));
    const int from = follows_[place] ? end_of(step + most_ends - 1) : start_of(step);
    values.seconds = copies_->seconds_between(from, end_of(step));
  } else {
    values.seconds = host_seconds_[place];
  }
  values.state = at(step).state;
  values.stops = at(step).stops;
  return values;
}

}  // namespace gptrain::step
