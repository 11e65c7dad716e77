#include "planner/update_clock.h"

#include <algorithm>
#include <utility>

#include "ops/op_event.h"
#include "parallel/away_state.h"

namespace gptrain::inline planner {

bool is_state_read(const Event& event) {
  return event.queue == Event::Queue::disk_read && event.beside_ops && event.name != gradient_read_name;
}

UpdateClock::UpdateClock(const DriveShares& shares, std::vector<double> state_reads, int64_t landed_units)
    : drives_(shares), state_reads_(std::move(state_reads)), reads_(static_cast<size_t>(landed_units)) {
  if (!state_reads_.empty()) next_read_ = reads_.size() % state_reads_.size();
}

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

Moment UpdateClock::end_of(DriveClock::Ticket ticket, TimeSpan& time) {
  const auto [start, end] = drives_.times(ticket);
  time = {start, end.time};
  return end;
}

// Also asks for the state that takes the written one's place.
void UpdateClock::play_write(int32_t unit, double seconds) {
  const DriveClock::Ticket write = writes_[unit] = drives_.add(true, updates_, seconds);
  reads_.push_back(Read{drives_.add(false, updates_, state_reads_[next_read_], write), write});
  next_read_ = (next_read_ + 1) % state_reads_.size();
}

void UpdateClock::play(int32_t unit, std::span<const Event> events, const std::vector<double>& seconds,
                       std::vector<TimeSpan>* times) {
  Moment returned;        // end of the copy of the updated weights to the GPU
  Moment landed = norm_;  // when the read of the unit's gradients is asked for
  for (size_t i = 0; i < events.size(); ++i) {
    TimeSpan span;
    if (events[i].queue == Event::Queue::ops) continue;
    const bool reads = events[i].queue == Event::Queue::disk_read, writes = events[i].queue == Event::Queue::disk_write;
    if ((reads || writes) && !events[i].beside_ops) {
      updates_.await(end_of(drives_.add(writes, updates_, seconds[i]), span));
    } else if (is_state_read(events[i])) {
      landed = norm_;
      if (reads_.front()) {
        landed.await(drives_.times(reads_.front()->freed).end);
        updates_.await(end_of(reads_.front()->state, span));
      }
      reads_.pop_front();
    } else if (reads) {
      updates_.await(transfer(events[i], landed, seconds[i], span));
    } else if (writes) {
      span = {updates_.time, updates_.time + seconds[i]};
      play_write(unit, seconds[i]);
    } else if (events[i].kind == Event::Kind::copy && events[i].name == download_name) {
      updates_.await(transfer(events[i], norm_, seconds[i], span));
    } else if (events[i].kind == Event::Kind::copy && events[i].beside_ops) {
      returned = transfer(events[i], updates_, seconds[i], span);
    } else {
      span.start_seconds = updates_.time;
      updates_.add(spending_of(events[i]), seconds[i]);
      span.end_seconds = updates_.time;
    }
    if (times != nullptr) (*times)[i] = span;
  }
  Moment& over = over_[unit];
  over = updates_;
  over.await(returned);
}

Moment UpdateClock::transfer(const Event& event, const Moment& asked, double seconds, TimeSpan& time) {
  if (event.queue == Event::Queue::disk_read) return end_of(drives_.add(false, asked, seconds), time);
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
  const auto found = writes_.find(unit);
  return found == writes_.end() ? Moment{} : drives_.times(found->second).end;
}

void UpdateClock::begin_next_step(double now) {
  for (auto& [unit, moment] : over_) moment = moved(moment, now);
  for (Moment* const lane : {&norm_, &updates_, &to_host_, &to_device_}) *lane = moved(*lane, now);
  drives_.move_origin(now);
}

}  // namespace gptrain::planner
