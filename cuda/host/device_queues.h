// The queues of one device of the host harness, and the orders in which a device may run what is in them.
//
// Work that is queued runs when a wait of the host needs it, when it is queued, or at any moment between, as random
// numbers decide: nothing but the order inside a queue and what one queue follows of another's is kept, as on a device.
// So where a wait is missing, sooner or later somebody finds what was there before, or what has come since.
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

// A place in a queue: reached once all that was queued there before it has run.
struct Point {
  int queue;
  bool reached = false;
  std::chrono::steady_clock::time_point when = {};
};
using Mark = std::shared_ptr<Point>;  // null: nothing has been marked

// Threads may share one. What work throws, whoever made it run gets.
class DeviceQueues {
 public:
  static constexpr int ops = 0;  // of the device's backend; always there

  explicit DeviceQueues(uint64_t seed) : random_(seed) {}

  int add_queue();
  // With what is left in it.
  void remove_queue(int queue);
  void add(int queue, Work work);
  Mark mark(int queue);
  // What is added to the queue from now on runs after what is marked.
  void follow(int queue, const Mark& mark);

  // The host waits for what is marked.
  void wait(const Mark& mark);
  double seconds_between(const Mark& from, const Mark& to);
  // Brings the device to rest, as memory that is given back does.
  void run_all();
  // What is queued is never run.
  void drop_all();

 private:
  // Work, or a point of this queue, or one of another queue that comes first.
  struct Item {
    Work work;
    Mark own, other;
  };

  bool can_go_on(int queue) const;
  void run_first_of(int queue);
  void drop(int queue);
  void run_as_far_as_possible(int queue);
  void run_to_the_end(int queue);
  // No more than has to be.
  void run_until(const Point& point);
  void run_in_random_order_until(const Point& point);

  std::mutex mutex_;  // of what follows
  std::map<int, std::deque<Item>> queues_{{ops, {}}};
  int last_queue_ = ops;
  std::mt19937_64 random_;
};

// How often the host has waited for a device so far, in all threads: for what was not over already.
int64_t host_waits();

}  // namespace gptrain::simt
