#include "host/device_queues.h"

#include <atomic>
#include <stdexcept>
#include <utility>
#include <vector>

#include "host/device_memory.h"

namespace gptrain::simt {
namespace {

// One in this many queueing calls lets the queue run.
constexpr uint64_t one_in = 4;

std::atomic<int64_t> waits = 0;

}  // namespace

int64_t host_waits() { return waits; }

int DeviceQueues::add_queue() {
  const std::lock_guard lock(mutex_);
  queues_[++last_queue_];
  return last_queue_;
}

void DeviceQueues::remove_queue(int queue) {
  const std::lock_guard lock(mutex_);
  drop(queue);
  queues_.erase(queue);
}

void DeviceQueues::add(int queue, Work work) {
  const std::lock_guard lock(mutex_);
  queues_.at(queue).push_back({std::move(work), nullptr, nullptr});
  if (random_() % one_in == 0) run_as_far_as_possible(queue);
}

Mark DeviceQueues::mark(int queue) {
  const std::lock_guard lock(mutex_);
  auto point = std::make_shared<Point>(Point{queue});
  queues_.at(queue).push_back({nullptr, point, nullptr});
  return point;
}

void DeviceQueues::follow(int queue, const Mark& mark) {
  const std::lock_guard lock(mutex_);
  if (mark) queues_.at(queue).push_back({nullptr, nullptr, mark});
}

bool DeviceQueues::can_go_on(int queue) const {
  const std::deque<Item>& items = queues_.at(queue);
  return !items.empty() && (items.front().other == nullptr || items.front().other->reached);
}

void DeviceQueues::run_first_of(int queue) {
  const Item item = std::move(queues_.at(queue).front());
  queues_.at(queue).pop_front();
  if (item.own) {
    item.own->reached = true;
    item.own->when = std::chrono::steady_clock::now();
  }
  if (item.work) item.work();
}

void DeviceQueues::run_as_far_as_possible(int queue) {
  const DeviceAccess access;
  while (can_go_on(queue)) run_first_of(queue);
}

void DeviceQueues::run_to_the_end(int queue) {
  const DeviceAccess access;
  while (!queues_.at(queue).empty()) {
    const Mark other = queues_.at(queue).front().other;
    if (other) run_until(*other);
    run_first_of(queue);
  }
}

void DeviceQueues::run_until(const Point& point) {
  while (!point.reached) {
    const Mark other = queues_.at(point.queue).front().other;
    if (other) run_until(*other);
    run_first_of(point.queue);
  }
}

void DeviceQueues::run_in_random_order_until(const Point& point) {
  while (!point.reached) {
    std::vector<int> ready;
    for (const auto& [queue, items] : queues_)
      if (can_go_on(queue)) ready.push_back(queue);
    run_first_of(ready[random_() % ready.size()]);
  }
}

void DeviceQueues::wait(const Mark& mark) {
  const std::lock_guard lock(mutex_);
  if (!mark || mark->reached) return;
  ++waits;
  const DeviceAccess access;
  if (random_() % 2 == 0) {
    run_until(*mark);
  } else {
    run_in_random_order_until(*mark);
  }
}

double DeviceQueues::seconds_between(const Mark& from, const Mark& to) {
  const std::lock_guard lock(mutex_);
  if (!from || !to || !from->reached || !to->reached) throw std::logic_error("a time that has not come");
  return std::chrono::duration<double>(to->when - from->when).count();
}

void DeviceQueues::run_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [queue, items] : queues_) run_to_the_end(queue);
}

void DeviceQueues::drop_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [queue, items] : queues_) drop(queue);
}

void DeviceQueues::drop(int queue) {
  std::deque<Item>& items = queues_.at(queue);
  for (const Item& item : items)
    if (item.own) item.own->reached = true;
  items.clear();
}

}  // namespace gptrain::simt
