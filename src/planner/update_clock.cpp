#include "planner/update_clock.h"

#include <algorithm>

#include "ops/op_event.h"
#include "parallel/state_layout.h"

namespace gptrain::inline planner {
namespace {

// Returns the moment `earlier` seconds before `moment`, as a wait for copies since the step's start.
Moment moved(const Moment& moment, double earlier) {
  Moment result;
  result.add(static_cast<size_t>(Spending::copies), std::max(moment.time - earlier, 0.0));
  return result;
}

}  // namespace

Moment& UpdateClock::lane_of(const Event& event) {
  if (event.queue != Event::Queue::update) return disk_;
  return event.name == download_name ? to_host_ : to_device_;
}

void UpdateClock::begin(const Moment& norm) {
  norm_ = norm;
  updates_.await(norm);
  visits_ = 0;
}

void UpdateClock::write_oldest() {
  const Written oldest = written_.front();
  written_.pop_front();
  disk_.await(oldest.ready);
  disk_.add(static_cast<size_t>(Spending::copies), oldest.seconds);
}

void UpdateClock::play(int32_t unit, std::span<const Event> events, const std::vector<double>& seconds,
                       std::vector<TimeSpan>* times) {
  Moment& updates = updates_;
  bool is_away = false;
  Moment returned;  // end of the copy of the updated weights to the GPU
  for (size_t i = 0; i < events.size(); ++i) {
    TimeSpan span;
    if (events[i].queue == Event::Queue::disk_read) {
      is_away = true;
      while (std::ssize(written_) >= StateLayout::most_landed) write_oldest();
      const bool read_before = has_read_ahead_ && visits_ < StateLayout::most_landed;
      span.start_seconds = disk_.time;
      if (!read_before) disk_.add(spending_of(events[i]), seconds[i]);
      span.end_seconds = disk_.time;
      if (!read_before) updates.await(disk_);
    } else if (events[i].queue == Event::Queue::disk_write) {
      written_.push_back({updates, seconds[i]});
      span = {updates.time, updates.time + seconds[i]};
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
  if (is_away) ++visits_;
  Moment& over = over_[unit];
  over = updates;
  over.await(returned);
}

const Moment& UpdateClock::transfer(const Event& event, const Moment& asked, double seconds, TimeSpan& time) {
  Moment& lane = lane_of(event);
  lane.await(asked);
  time.start_seconds = lane.time;
  lane.add(static_cast<size_t>(Spending::copies), seconds);
  time.end_seconds = lane.time;
  return lane;
}

Moment UpdateClock::over(int32_t unit) const {
  const auto found = over_.find(unit);
  return found == over_.end() ? Moment{} : found->second;
}

void UpdateClock::begin_next_step(double now) {
  while (!written_.empty()) write_oldest();
  for (auto& [unit, moment] : over_) moment = moved(moment, now);
  for (Moment* const lane : {&norm_, &updates_, &disk_, &to_host_, &to_device_}) *lane = moved(*lane, now);
  visits_ = 0;
  has_read_ahead_ = false;
}

}  // namespace gptrain::planner
