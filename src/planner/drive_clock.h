// Simulates when reads and writes of the drives run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "machine/event_times.h"
#include "planner/moment.h"

namespace gptrain::inline planner {

// Reads run one after another, and so do writes. A read and a write at the same time slow each other down, to the
// shares of their speed that DriveShares has. Simulates only as far as times were asked for: a transfer that is added
// later does not slow down those whose end is known.
class DriveClock {
 public:
  DriveClock() = default;
  explicit DriveClock(const DriveShares& shares) : shares_{shares.read, shares.write} {}

  // A transfer: its direction, and its number in that direction.
  struct Ticket {
    bool writes = false;
    size_t number = 0;
  };
  // Adds a transfer that is asked for at `asked` and takes `seconds` if it runs alone.
  Ticket add(bool writes, const Moment& asked, double seconds);
  struct Times {
    double start = 0;
    Moment end;
  };
  // Returns the times of a transfer.
  Times times(Ticket ticket);
  // Changes the origin of time: a moment at `now` or before is at 0 afterwards.
  void move_origin(double now);

 private:
  struct Transfer {
    Moment asked;
    double left = 0;    // seconds, if it runs alone
    double start = -1;  // below 0: not begun
    Moment end;
  };
  struct Direction {
    std::vector<Transfer> transfers;
    size_t next = 0;  // first one that is not over

    Transfer* first() { return next < transfers.size() ? &transfers[next] : nullptr; }
  };

  double earliest(const Direction& direction) const;
  void advance();

  std::array<double, 2> shares_{0.5, 0.5};
  std::array<Direction, 2> directions_;  // reads, writes
  double now_ = 0;                       // all transfers are simulated until then
};

// Returns the moment `earlier` seconds before `moment`, as a wait for copies since the step's start.
Moment moved(const Moment& moment, double earlier);

}  // namespace gptrain::planner
