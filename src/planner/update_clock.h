// Simulates when updates run whose state is on disk (parallel/update_lane.h).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/event.h"
#include "planner/moment.h"
#include "step/time_span.h"

namespace gptrain::inline planner {

// Used by RankClock. Updates run one after another. Reads and writes of the disk take turns; copies between a GPU and
// its host have one lane for each direction. The state of the first units is read before the step's updates begin, that
// of the others once the state StateLayout::most_landed units before is written.
class UpdateClock {
 public:
  // Begins a step's updates: they run after `norm`, the moment at which the norm is known.
  void begin(const Moment& norm);
  // Plays the events of a unit's update. `seconds` has the duration of each event; `times`, if not null, has as many
  // elements, which receive the events' times.
  void play(int32_t unit, std::span<const Event> events, const std::vector<double>& seconds,
            std::vector<TimeSpan>* times);
  // Plays a transfer of the disk, or between a GPU and its host, that is asked for at `asked`, after all others so far.
  // Returns its end.
  const Moment& transfer(const Event& event, const Moment& asked, double seconds, TimeSpan& time);
  // Returns the end of the unit's last update; a moment at 0 if there was none.
  Moment over(int32_t unit) const;
  // Ends the step in which updates were played: the next one begins at `now`, a moment of this one, and reads the state
  // of its first units.
  void begin_next_step(double now);
  // Returns true if any update was played.
  bool any() const { return !over_.empty(); }

 private:
  void write_oldest();
  Moment& lane_of(const Event& event);

  struct Written {
    Moment ready;
    double seconds;
  };
  Moment norm_, updates_, disk_, to_host_, to_device_;
  std::deque<Written> written_;  // state that is updated and not yet written
  int64_t visits_ = 0;           // units of this step so far
  bool has_read_ahead_ = true;   // the state of the first units was read before the first step
  std::map<int32_t, Moment> over_;
};

}  // namespace gptrain::planner
