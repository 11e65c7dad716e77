#include "base/event_log.h"

#include <utility>

namespace gptrain::inline base {

void EventLog::start() {
  const std::lock_guard lock(mutex_);
  taken_ = end();
  events_.clear();
  recomputing_ = false;
  queue_ = Event::Queue::ops;
  on_ = true;
}

void EventLog::stop() { on_ = false; }

int64_t EventLog::add(Event event) {
  if (event.kind == Event::Kind::op) event.queue = queue_;
  if (recomputing_) event.model_flops = 0;
  if (!copies_name_.empty() && event.kind == Event::Kind::copy) event.name = copies_name_;
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  return end() - 1;
}

void EventLog::set_times(int64_t number, double start_seconds, double end_seconds) {
  const std::lock_guard lock(mutex_);
  if (number < taken_ || number >= end()) return;
  Event& event = events_[number - taken_];
  event.start_seconds = start_seconds;
  event.end_seconds = end_seconds;
}

std::vector<Event> EventLog::take(int64_t end) {
  const std::lock_guard lock(mutex_);
  std::vector<Event> events;
  const int64_t first = taken_;
  events.reserve(end - first);
  for (; taken_ < end; ++taken_) {
    Event& event = events.emplace_back(std::move(events_.front()));
    event.awaits = event.awaits < first ? -1 : event.awaits - first;
    events_.pop_front();
  }
  return events;
}

}  // namespace gptrain::base
