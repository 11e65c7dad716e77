#include "step/step_readback.h"

#include <new>
#include <stdexcept>

#include "base/event.h"

namespace gptrain::inline step {

StepReadback::StepReadback(Backend& backend, SideQueue* copy_queue, int64_t num_sums)
    : backend_(backend),
      copy_queue_(copy_queue),
      pinned_(copy_queue != nullptr
                  ? copy_queue->allocate_host(most_ahead *
                                              (sizeof(Copied) + static_cast<size_t>(num_sums) * sizeof(double)))
                  : nullptr),
      copied_(copy_queue != nullptr ? new (pinned_->data()) Copied[most_ahead] : here_.data()),
      num_sums_(num_sums),
      sums_here_(copy_queue != nullptr ? 0 : static_cast<size_t>(most_ahead * num_sums)),
      sums_(copy_queue != nullptr ? reinterpret_cast<double*>(pinned_->data() + most_ahead * sizeof(Copied))
                                  : sums_here_.data()) {}

void StepReadback::begin() {
  if (ahead() == most_ahead) throw std::logic_error("a step begins before an earlier one is read");
  const auto slot = static_cast<size_t>(queued_ % most_ahead);
  follows_[slot] = ahead() > 0;
  if (copy_queue_ != nullptr) {
    copy_queue_->time_ops(start_of(queued_));
  } else {
    host_seconds_[slot] = steady_seconds();
  }
}

void StepReadback::queue(const StepState* state, const double* stops, const double* sums) {
  Copied& copied = at(queued_);
  if (copy_queue_ != nullptr) {
    copy_queue_->copy_among_ops(&copied.state, state, sizeof copied.state);
    copy_queue_->copy_among_ops(&copied.stops, stops, sizeof copied.stops);
    if (num_sums_ > 0) copy_queue_->copy_among_ops(sums_at(queued_), sums, sums_bytes());
    copy_queue_->time_ops(end_of(queued_));
    copy_queue_->mark_ops(end_of(queued_));
  } else {
    backend_.download(&copied.state, state, sizeof copied.state);
    backend_.download(&copied.stops, stops, sizeof copied.stops);
    if (num_sums_ > 0) backend_.download(sums_at(queued_), sums, sums_bytes());
    double& seconds = host_seconds_[queued_ % most_ahead];
    seconds = steady_seconds() - seconds;
  }
  ++queued_;
}

StepReadback::Values StepReadback::read() {
  if (ahead() == 0) throw std::logic_error("no step is queued");
  const int64_t step = read_++;
  const auto slot = static_cast<size_t>(step % most_ahead);
  Values values;
  if (copy_queue_ != nullptr) {
    copy_queue_->await_ops(end_of(step));
    const int from = follows_[slot] ? end_of(step + most_ends - 1) : start_of(step);
    values.seconds = copy_queue_->seconds_between(from, end_of(step));
  } else {
    values.seconds = host_seconds_[slot];
  }
  values.state = at(step).state;
  values.stops = at(step).stops;
  values.sums.assign(sums_at(step), sums_at(step) + num_sums_);
  return values;
}

}  // namespace gptrain::step
