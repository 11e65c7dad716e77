#include "planner/update_clock.h"

#include <algorithm>

#include "ops/op_event.h"

namespace gptrain::inline planner {
void UpdateClock::begin(const Moment& norm) {
  play_postponed();
  norm_ = norm;
  updates_.await(norm);
}

void UpdateClock::postpone(int32_t unit, std::span<const Event> events, const std::vector<double>& seconds) {
  postponed_.push_back({unit, events, &seconds});
}

void UpdateClock::play_postponed() {
  while (!postponed_.empty()) over(postponed_.front().unit);
}

void UpdateClock::play(int32_t unit, std::span<const Event> events, const std::vector<double>& seconds,
                       std::vector<TimeSpan>* times) {
  Moment& updates = updates_;
  Moment returned;  // end of the copy of the updated weights to the GPU
  for (size_t i = 0; i < events.size(); ++i) {
    TimeSpan span;
    if (events[i].queue == Event::Queue::ops) continue;
    if (events[i].queue == Event::Queue::disk_read) {
      // The state of the first units was read before the first step.
      if (std::ssize(written_) == landed_units_) {
        const Moment freed = drives_.times(written_.front()).end;
        written_.pop_front();
        updates.await(transfer(events[i], freed, seconds[i], span));
      }
    } else if (events[i].queue == Event::Queue::disk_write) {
      span = {updates.time, updates.time + seconds[i]};
      written_.push_back(writes_[unit] = drives_.add(true, updates, seconds[i]));
    } else if (events[i].kind == Event::Kind::copy && events[i].name == download_name) {
      updates.await(transfer(events[i], norm_, seconds[i], span));
    } else if (events[i].kind == Event::Kind::copy && events[i].beside_ops) {
      returned = transfer(events[i], updates, seconds[i], span);
    } else {
      span.start_seconds = updates.time;
      updates.add(spending_of(events[i]), seconds[i]);
      span.end_seconds = updates.time;
    }
    if (times != nullptr) (*times)[i] = span;
  }
  Moment& over = over_[unit];
  over = updates;
  over.await(returned);
}

Moment UpdateClock::transfer(const Event& event, const Moment& asked, double seconds, TimeSpan& time) {
  if (event.queue == Event::Queue::disk_read) {
    const auto [start, end] = drives_.times(drives_.add(false, asked, seconds));
    time = {start, end.time};
    return end;
  }
  if (event.queue == Event::Queue::disk_write) {
    drives_.add(true, asked, seconds);
    time = {asked.time, asked.time + seconds};
    return asked;
  }
  Moment& lane = event.name == download_name ? to_host_ : to_device_;
  lane.await(asked);
  time.start_seconds = lane.time;
  lane.add(static_cast<size_t>(Spending::copies), seconds);
  time.end_seconds = lane.time;
  return lane;
}

Moment UpdateClock::over(int32_t unit) {
  const auto is_waiting = [&] {
    return std::any_of(postponed_.begin(), postponed_.end(), [&](const Postponed& of) { return of.unit == unit; });
  };
  while (is_waiting()) {
    const Postponed first = postponed_.front();
    postponed_.pop_front();
    play(first.unit, first.events, *first.seconds, nullptr);
  }
  const auto found = over_.find(unit);
  return found == over_.end() ? Moment{} : found->second;
}

Moment UpdateClock::written(int32_t unit) {
  over(unit);
  // State of the next units is asked for before the unit is written, and so read before reads that wait for that.
  for (int64_t ahead = 1; ahead < landed_units_ && !postponed_.empty(); ++ahead) over(postponed_.front().unit);
  const auto found = writes_.find(unit);
  return found == writes_.end() ? Moment{} : drives_.times(found->second).end;
}

void UpdateClock::begin_next_step(double now) {
  for (auto& [unit, moment] : over_) moment = moved(moment, now);
  for (Moment* const lane : {&norm_, &updates_, &to_host_, &to_device_}) *lane = moved(*lane, now);
  drives_.move_origin(now);
}

}  // namespace gptrain::planner
