// Simulates the times of updates whose state is on disk or on the host of a GPU (parallel/update_lane.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/event.h"
#include "planner/drive_clock.h"
#include "planner/moment.h"
#include "step/time_span.h"

namespace gptrain::inline planner {

// Returns true if an event of an update is the read of a unit's state that may go on before it.
bool is_state_read(const Event& event);

// Used by RankClock. Updates run one after another. Copies between a GPU and its host have one lane for each direction.
// A unit's state is read once the state of the unit `landed_units` updates earlier is written (StateLayout), and that
// of the first units before the first step. Gradients on disk are read after the norm.
class UpdateClock {
 public:
  UpdateClock() = default;
  // `state_reads`: seconds to read the state of each unit on disk, in the order of their updates.
  UpdateClock(const DriveShares& shares, std::vector<double> state_reads, int64_t landed_units);

  // Begins a step's updates: they run after `norm`, the moment at which the norm is known.
  void begin(const Moment& norm);
  // Plays the events of a unit's update but for those of Event::Queue::ops. `seconds` has the duration of each event;
  // `times`, if not null, has as many elements, which receive the events' times.
  void play(int32_t unit, std::span<const Event> events, const std::vector<double>& seconds,
            std::vector<TimeSpan>* times);
  // Plays a unit's update when its end is asked for, or before the next call of `begin`. The events and the seconds
  // must stay valid until then.
  void postpone(int32_t unit, std::span<const Event> events, const std::vector<double>& seconds);
  // Plays a transfer of the disk, or between a GPU and its host, that is asked for at `asked`. Returns its end, or for
  // a write of the disk, which nothing waits for, the moment `asked`.
  Moment transfer(const Event& event, const Moment& asked, double seconds, TimeSpan& time);
  // Returns the end of the unit's last update; a moment at 0 if there was none.
  Moment over(int32_t unit);
  // Returns the end of the last write of the unit to the disk; a moment at 0 if there was none.
  Moment written(int32_t unit);
  // Ends the step in which updates were played: the next one begins at `now`, a moment of this one, from which
  // its times count.
  void begin_next_step(double now);
  // Returns true if any update was played or postponed.
  bool any() const { return !over_.empty() || !postponed_.empty(); }

 private:
  // A read of state that may go on before its update begins.
  struct Read {
    DriveClock::Ticket state;
    DriveClock::Ticket freed;  // the write after which its place in memory is free
  };
  struct Postponed {
    int32_t unit;
    std::span<const Event> events;
    const std::vector<double>* seconds;
  };
  void play_write(int32_t unit, double seconds);
  Moment end_of(DriveClock::Ticket ticket, TimeSpan& time);
  void play_postponed();

  Moment norm_, updates_, to_host_, to_device_;
  DriveClock drives_;
  std::vector<double> state_reads_;
  size_t next_read_ = 0;                   // in state_reads_
  std::deque<std::optional<Read>> reads_;  // reads of the next updates; empty: before the first step
  std::map<int32_t, Moment> over_;
  std::map<int32_t, DriveClock::Ticket> writes_;  // the last one of each unit
  std::deque<Postponed> postponed_;
};

}  // namespace gptrain::planner
