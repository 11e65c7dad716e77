// The queues of one device of the host harness, and the orders in which a device may run their work.
//
// Queued work runs at a random moment between its queueing and the wait of the host that needs it. As on a device, only
// the order within a queue and the dependencies between queues hold. So code with a missing wait sooner or later reads
// old data, or data that came later.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>

namespace gptrain::simt {

using Work = std::function<void()>;

// A position in a queue: reached once all work queued before it has run.
struct Point {
  int queue;
  bool reached = false;
  std::chrono::steady_clock::time_point when = {};
};
using Mark = std::shared_ptr<Point>;  // null: nothing marked

// Thread-safe. An exception of queued work is thrown in the thread that made it run.
class DeviceQueues {
 public:
  static constexpr int ops = 0;  // the queue of the device's backend; always exists

  explicit DeviceQueues(uint64_t seed) : random_(seed) {}

  int add_queue();
  // Removes a queue and the work left in it.
  void remove_queue(int queue);
  void add(int queue, Work work);
  Mark mark(int queue);
  // Makes work added to the queue from now on wait for the mark.
  void follow(int queue, const Mark& mark);

  // Makes the host wait for the mark.
  void wait(const Mark& mark);
  double seconds_between(const Mark& from, const Mark& to);
  // Runs all queued work, as happens when device memory is freed.
  void run_all();
  // Discards all queued work.
  void drop_all();

 private:
  // Work, a point of this queue, or a point of another queue to wait for.
  struct Item {
    Work work;
    Mark own, other;
  };

  bool can_go_on(int queue) const;
  void run_first_of(int queue);
  void drop(int queue);
  void run_as_far_as_possible(int queue);
  void run_to_the_end(int queue);
  // Runs only the work that the point needs.
  void run_until(const Point& point);
  void run_in_random_order_until(const Point& point);

  std::mutex mutex_;  // guards the members below
  std::map<int, std::deque<Item>> queues_{{ops, {}}};
  int last_queue_ = ops;
  std::mt19937_64 random_;
};

// Returns how often the host has waited for unfinished work of a device, in all threads.
int64_t host_waits();

}  // namespace gptrain::simt
