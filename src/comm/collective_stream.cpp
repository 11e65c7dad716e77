#include "comm/collective_stream.h"

#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "base/thread.h"
#include "base/units.h"

namespace gptrain {
namespace {

constexpr std::string_view waiting = "waiting for ranks";

bool alone(const Communicator* group) { return group == nullptr || group->size() == 1; }

}  // namespace

CollectiveStream::CollectiveStream(bool threaded, SideQueue* queue) : threaded_(threaded), queue_(queue) {
  if (threaded_) thread_ = start_thread("runs collectives", [this] { work(); });
}

CollectiveStream::~CollectiveStream() {
  if (!threaded_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CollectiveStream::run(const Item& item) {
  switch (item.kind) {
    case Kind::all_reduce:
      return item.group->all_reduce(item.out, item.count, item.dtype, item.op);
    case Kind::reduce_scatter:
      return item.group->reduce_scatter(item.in, item.out, item.count, item.dtype, item.op);
    case Kind::all_gather:
      return item.group->all_gather(item.in, item.out, item.count, item.dtype);
    case Kind::broadcast:
      return item.group->broadcast(item.out, item.count, item.dtype, item.root);
  }
}

void CollectiveStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || finished_ < submitted_; });
    // What was issued before the end runs before the end, unless the group has failed: peers may be waiting for it.
    if (finished_ == submitted_) return;
    const size_t place = place_of(finished_);
    const Item item = ring_[place];
    const bool failed = failure_ != nullptr;
    const bool recording = recording_;
    lock.unlock();
    std::exception_ptr thrown;
    const double start = recording ? steady_seconds() : 0;
    try {
      if (!failed && queue_ != nullptr) queue_->follow_ops(static_cast<int>(place));
      if (!failed) run(item);
    } catch (...) {
      thrown = std::current_exception();
    }
    const double end = recording ? steady_seconds() : 0;
    lock.lock();
    if (recording && recording_) {
      recorded_.collectives.push_back(event_of(item, start, end));
    }
    if (thrown) failure_ = thrown;
    ++finished_;
    changed_.notify_all();
  }
}

template <typename Condition>
void CollectiveStream::wait_until(std::unique_lock<std::mutex>& lock, Condition condition) {
  if (condition()) return;
  const double start = steady_seconds();
  changed_.wait(lock, condition);
  if (recording_) {
    recorded_.waits.push_back({.name = waiting, .shape = {}, .start_seconds = start, .end_seconds = steady_seconds()});
  }
}

TimedEvent CollectiveStream::event_of(const Item& item, double start_seconds, double end_seconds) {
  constexpr std::array<std::string_view, 4> names = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
  const int size = item.group->size();
  // `count` is that of a rank's piece where the ranks' pieces make up the whole.
  const bool of_pieces = item.kind == Kind::reduce_scatter || item.kind == Kind::all_gather;
  const int64_t bytes = item.count * dtype_bytes(item.dtype) * (of_pieces ? size : 1);
  return {.name = names[static_cast<size_t>(item.kind)],
          .shape = fmt::format("{} {} over {} ranks", format_bytes(static_cast<double>(bytes)), dtype_name(item.dtype),
                               size),
          .start_seconds = start_seconds,
          .end_seconds = end_seconds,
          .bytes_moved = bytes};
}

void CollectiveStream::start_recording() {
  const std::lock_guard lock(mutex_);
  recording_ = threaded_ || queue_ != nullptr;
  recorded_ = {};
}

CollectiveStream::Recording CollectiveStream::take_recording() {
  const std::lock_guard lock(mutex_);
  recording_ = false;
  return std::exchange(recorded_, {});
}

void CollectiveStream::run_and_record(const Item& item) {
  const double start = steady_seconds();
  run(item);
  item.group->synchronize();
  const double end = steady_seconds();
  recorded_.collectives.push_back(event_of(item, start, end));
  recorded_.waits.push_back({.name = waiting, .shape = {}, .start_seconds = start, .end_seconds = end});
}

CollectiveStream::Ticket CollectiveStream::issue(const Item& item) {
  if (alone(item.group)) return done;
  if (!threaded_ && queue_ == nullptr) {
    run(item);
    return done;
  }
  if (!threaded_) {
    // A mark that a later item has taken over is that of later work, which comes after this one's.
    const auto mark = static_cast<int>(place_of(issued_));
    queue_->mark_ops(mark);
    queue_->follow_ops(mark);
    if (recording_) {
      run_and_record(item);
    } else {
      run(item);
    }
    queue_->mark_work(mark);
    return ++issued_;
  }
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return submitted_ - finished_ < static_cast<Ticket>(ring_size); });
    const size_t place = place_of(submitted_);
    if (queue_ != nullptr) queue_->mark_ops(static_cast<int>(place));
    ring_[place] = item;
    issued_ = ++submitted_;
  }
  changed_.notify_all();
  return issued_;
}

void CollectiveStream::wait(Ticket ticket) {
  if (ticket == done) return;
  if (!threaded_) return queue_->ops_follow(static_cast<int>(place_of(ticket - 1)));
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return finished_ >= ticket; });
  if (failure_) std::rethrow_exception(failure_);
}

CollectiveStream::Ticket CollectiveStream::all_reduce(Communicator* group, void* data, int64_t count, DType dtype,
                                                      ReduceOp op) {
  return issue({Kind::all_reduce, group, data, data, count, dtype, op, 0});
}

CollectiveStream::Ticket CollectiveStream::reduce_scatter(Communicator* group, const void* in, void* out, int64_t count,
                                                          DType dtype) {
  return issue({Kind::reduce_scatter, group, in, out, count, dtype, ReduceOp::sum, 0});
}

CollectiveStream::Ticket CollectiveStream::all_gather(Communicator* group, const void* in, void* out, int64_t count,
                                                      DType dtype) {
  return issue({Kind::all_gather, group, in, out, count, dtype, ReduceOp::sum, 0});
}

CollectiveStream::Ticket CollectiveStream::broadcast(Communicator* group, void* data, int64_t count, DType dtype,
                                                     int root) {
  return issue({Kind::broadcast, group, data, data, count, dtype, ReduceOp::sum, root});
}

}  // namespace gptrain
