// The events of one rank, in the order in which its thread asks for the work. The backend and the lanes write to it; what
// a plan writes and what a step writes that ran is the same but for the times.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/event.h"

namespace gptrain {

// Everything but set_times is the rank's thread's.
class EventLog {
 public:
  bool on() const { return on_; }
  void start();  // what was written before is gone
  void stop();   // what was written stays

  // While true, ops count as executed but not as part of the model.
  void set_recomputing(bool recomputing) { recomputing_ = recomputing; }

  // While this is not empty, copies have this name, and not one that says whither they go. Static storage.
  void name_copies(std::string_view name) { copies_name_ = name; }

  // Only while it is on. Returns the event's number: events are numbered as they come, on and on.
  int64_t add(Event event);
  int64_t end() const { return taken_ + static_cast<int64_t>(events_.size()); }  // the next event's number

  // Any thread: when the event ran. One that was taken, or is gone, is left alone.
  void set_times(int64_t number, double start_seconds, double end_seconds);

  // Takes out the events before number `end`, of which none was taken before. What they await becomes an index among
  // them, or -1.
  std::vector<Event> take(int64_t end);

 private:
  bool on_ = false;
  bool recomputing_ = false;
  std::string_view copies_name_ = {};
  int64_t taken_ = 0;  // number of the first event that is kept
  std::mutex mutex_;   // of the events' times, and of where they lie
  std::deque<Event> events_;
};

}  // namespace gptrain
