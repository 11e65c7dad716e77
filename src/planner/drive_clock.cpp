#include "planner/drive_clock.h"

#include <algorithm>
#include <limits>

namespace gptrain::inline planner {

Moment moved(const Moment& moment, double earlier) {
  Moment result;
  result.add(static_cast<size_t>(Spending::copies), std::max(moment.time - earlier, 0.0));
  return result;
}

DriveClock::Ticket DriveClock::add(bool writes, const Moment& asked, double seconds) {
  std::vector<Transfer>& transfers = directions_[writes ? 1 : 0].transfers;
  transfers.push_back({.asked = asked, .left = seconds, .end = {}});
  return {writes, transfers.size() - 1};
}

DriveClock::Times DriveClock::times(Ticket ticket) {
  const Direction& direction = directions_[ticket.writes ? 1 : 0];
  while (direction.next <= ticket.number) advance();
  const Transfer& transfer = direction.transfers[ticket.number];
  return {transfer.start, transfer.end};
}

// Returns when the first transfer of a direction goes on; infinity: there is none.
double DriveClock::earliest(const Direction& direction) const {
  if (direction.next == direction.transfers.size()) return std::numeric_limits<double>::infinity();
  return std::max(now_, direction.transfers[direction.next].asked.time);
}

// Simulates until a transfer begins or ends.
void DriveClock::advance() {
  const std::array<double, 2> from{earliest(directions_[0]), earliest(directions_[1])};
  const double start = std::min(from[0], from[1]);
  const bool both = from[0] == from[1];
  double end = both ? std::numeric_limits<double>::infinity() : std::max(from[0], from[1]);
  for (size_t i = 0; i < 2; ++i)
    if (from[i] == start) end = std::min(end, start + directions_[i].first()->left / (both ? shares_[i] : 1));
  for (size_t i = 0; i < 2; ++i) {
    if (from[i] != start) continue;
    Direction& direction = directions_[i];
    Transfer& transfer = *direction.first();
    if (transfer.start < 0) transfer.start = start;
    const double speed = both ? shares_[i] : 1;
    const bool is_over = start + transfer.left / speed <= end;
    transfer.left -= (end - start) * speed;
    if (!is_over) continue;
    transfer.end = transfer.asked;
    if (direction.next > 0 && direction.transfers[direction.next - 1].end.time > transfer.end.time)
      transfer.end = direction.transfers[direction.next - 1].end;
    transfer.end.add(static_cast<size_t>(Spending::copies), end - transfer.end.time);
    ++direction.next;
  }
  now_ = end;
}

void DriveClock::move_origin(double now) {
  for (Direction& direction : directions_) {
    for (Transfer& transfer : direction.transfers) {
      transfer.asked = moved(transfer.asked, now);
      transfer.end = moved(transfer.end, now);
      if (transfer.start >= 0) transfer.start = std::max(transfer.start - now, 0.0);
    }
  }
  now_ = std::max(now_ - now, 0.0);
}

}  // namespace gptrain::planner
