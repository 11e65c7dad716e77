// Simulates when reads and writes of the drives run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "machine/event_times.h"
#include "planner/moment.h"

namespace gptrain::inline planner {

// Reads run one after another in the order in which they are asked for, and so do writes. A read and a write at the
// same time slow each other down, to the shares of their speed that DriveShares has. Simulates only as far as times
// were asked for: a transfer that is added later does not slow down those whose end is known.
class DriveClock {
 public:
  DriveClock() = default;
  explicit DriveClock(const DriveShares& shares) : shares_{shares.read, shares.write} {}

  // A transfer: its direction, and its number in that direction.
  struct Ticket {
    bool writes = false;
    size_t number = 0;
  };
  // Adds a transfer that is asked for at `asked`, or at the end of the transfer `after` if that is later, and takes
  // `seconds` if it runs alone.
  Ticket add(bool writes, const Moment& asked, double seconds, std::optional<Ticket> after = {});
  struct Times {
    double start = 0;
    Moment end;
  };
  // Returns the times of a transfer.
  Times times(Ticket ticket);
  // Changes the origin of time: the moment `now` is at 0 afterwards, and all earlier ones, too. Simulates until then.
  void move_origin(double now);

 private:
  struct Transfer {
    Moment asked;
    double left = 0;  // seconds, if it runs alone
    std::optional<Ticket> after = {};
    double start = -1;  // below 0: not begun
    Moment end = {};
    bool is_over = false;
  };
  struct Direction {
    std::vector<Transfer> transfers;
    std::vector<size_t> waiting;  // transfers that are not over, in the order in which they were added
    Moment last_end;
  };
  // The transfer of a direction that goes on first.
  struct Next {
    size_t place = 0;  // in Direction::waiting
    double start = 0;  // infinity: there is none
  };

  bool is_over(Ticket ticket) const { return directions_[ticket.writes ? 1 : 0].transfers[ticket.number].is_over; }
  Next next(Direction& direction) const;
  void run(Direction& direction, size_t place, double start, double end, double speed);
  bool advance(double limit);

  std::array<double, 2> shares_{0.5, 0.5};
  std::array<Direction, 2> directions_;  // reads, writes
  double now_ = 0;                       // all transfers are simulated until then
};

// Returns the moment `earlier` seconds before `moment`, as a wait for copies since the step's start.
Moment moved(const Moment& moment, double earlier);

}  // namespace gptrain::planner
