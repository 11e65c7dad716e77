// The events of one rank, in the order in which its thread issues them. The backend and the lanes write to the log; a
// planned step and a real one write the same events, except for the times.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/event.h"

namespace gptrain::inline base {

// One thread, the rank's, calls all methods; set_times may be called from any thread.
class EventLog {
 public:
  bool on() const { return on_; }
  void start();  // discards all events recorded so far
  void stop();   // keeps the events

  // While true, ops add to the executed FLOPs but not to the model's.
  void set_recomputing(bool recomputing) { recomputing_ = recomputing; }

  // Name for copies from now on, in place of the one that gives their direction; empty: no change. Borrowed: static
  // storage.
  void name_copies(std::string_view name) { copies_name_ = name; }

  // Queue of the ops from now on.
  void set_queue(Event::Queue queue) { queue_ = queue; }

  // Records an event and returns its number; numbers rise by one and are never reused. REQUIRES: on().
  int64_t add(Event event);
  int64_t end() const { return taken_ + static_cast<int64_t>(events_.size()); }  // the next event's number

  // Sets an event's times. Any thread. No effect if the event was taken or discarded.
  void set_times(int64_t number, double start_seconds, double end_seconds);

  // Removes and returns the events before number `end`. `awaits` of each becomes an index into the result, or -1 if the
  // awaited event is not in it.
  std::vector<Event> take(int64_t end);

 private:
  bool on_ = false;
  bool recomputing_ = false;
  std::string_view copies_name_ = {};
  Event::Queue queue_ = Event::Queue::ops;
  int64_t taken_ = 0;  // number of the first event still held
  std::mutex mutex_;   // guards the times and positions of the events
  std::deque<Event> events_;
};

}  // namespace gptrain::base
