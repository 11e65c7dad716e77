#include "planner/drive_clock.h"

#include <algorithm>
#include <limits>

namespace gptrain::inline planner {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

}  // namespace

Moment moved(const Moment& moment, double earlier) {
  Moment result;
  result.add(static_cast<size_t>(Spending::copies), std::max(moment.time - earlier, 0.0));
  return result;
}

DriveClock::Ticket DriveClock::add(bool writes, const Moment& asked, double seconds, std::optional<Ticket> after) {
  Direction& direction = directions_[writes ? 1 : 0];
  const size_t number = direction.transfers.size();
  direction.transfers.push_back({.asked = asked, .left = seconds, .after = after});
  direction.waiting.push_back(number);
  return {writes, number};
}

DriveClock::Times DriveClock::times(Ticket ticket) {
  while (!is_over(ticket)) advance(never);
  const Transfer& transfer = directions_[ticket.writes ? 1 : 0].transfers[ticket.number];
  return {transfer.start, transfer.end};
}

// Returns the transfer that has begun, else the one that was asked for first.
DriveClock::Next DriveClock::next(Direction& direction) const {
  Next found{0, never};
  double earliest = never;
  for (size_t place = 0; place < direction.waiting.size(); ++place) {
    Transfer& transfer = direction.transfers[direction.waiting[place]];
    if (transfer.start >= 0) return {place, now_};
    if (transfer.after) {
      if (!is_over(*transfer.after)) continue;
      transfer.asked.await(directions_[transfer.after->writes ? 1 : 0].transfers[transfer.after->number].end);
      transfer.after.reset();
    }
    if (transfer.asked.time >= earliest) continue;
    earliest = transfer.asked.time;
    found = {place, std::max(now_, earliest)};
  }
  return found;
}

void DriveClock::run(Direction& direction, size_t place, double start, double end, double speed) {
  Transfer& transfer = direction.transfers[direction.waiting[place]];
  if (transfer.start < 0) transfer.start = start;
  const bool is_over = start + transfer.left / speed <= end;
  transfer.left -= (end - start) * speed;
  if (!is_over) return;
  transfer.end = transfer.asked;
  transfer.end.await(direction.last_end);
  transfer.end.add(static_cast<size_t>(Spending::copies), end - transfer.end.time);
  transfer.is_over = true;
  direction.last_end = transfer.end;
  direction.waiting.erase(direction.waiting.begin() + static_cast<std::ptrdiff_t>(place));
}

// Simulates until a transfer begins or ends, or until `limit`. Returns false if that comes first.
bool DriveClock::advance(double limit) {
  const std::array<Next, 2> first{next(directions_[0]), next(directions_[1])};
  const double start = std::min(first[0].start, first[1].start);
  if (start >= limit) return false;
  const bool both = first[0].start == first[1].start;
  double end = both ? limit : std::min(limit, std::max(first[0].start, first[1].start));
  const auto speed = [&](size_t i) { return both ? shares_[i] : 1; };
  for (size_t i = 0; i < 2; ++i) {
    if (first[i].start != start) continue;
    const Direction& direction = directions_[i];
    end = std::min(end, start + direction.transfers[direction.waiting[first[i].place]].left / speed(i));
  }
  for (size_t i = 0; i < 2; ++i)
    if (first[i].start == start) run(directions_[i], first[i].place, start, end, speed(i));
  now_ = end;
  return true;
}

void DriveClock::move_origin(double now) {
  while (advance(now)) {
  }
  for (Direction& direction : directions_) {
    for (Transfer& transfer : direction.transfers) {
      transfer.asked = moved(transfer.asked, now);
      transfer.end = moved(transfer.end, now);
      if (transfer.start >= 0) transfer.start = std::max(transfer.start - now, 0.0);
    }
    direction.last_end = moved(direction.last_end, now);
  }
  now_ = std::max(now_ - now, 0.0);
}

}  // namespace gptrain::planner
