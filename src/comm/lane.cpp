#include "comm/lane.h"

#include <algorithm>
#include <fmt/format.h>
#include <string_view>
#include <utility>

#include "base/thread.h"
#include "base/units.h"
#include "comm/plan.h"

namespace gptrain::inline comm {
namespace {

constexpr std::string_view wait_name = "waiting for ranks";

bool alone(const Communicator* group) { return group == nullptr || group->size() == 1; }

}  // namespace

std::exception_ptr LaneFailure::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void LaneFailure::set(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (first_) return;
  first_ = std::move(failure);
  for (Lane* const lane : lanes_) lane->give_up();
}

void LaneFailure::add(Lane* lane) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(lane);
}

void LaneFailure::remove(Lane* lane) {
  const std::lock_guard lock(mutex_);
  std::erase(lanes_, lane);
}

Lane::Lane(std::string name, const Options& options)
    : name_(std::move(name)),
      threaded_(options.threaded),
      queue_(options.queue),
      failure_(options.failure ? options.failure : std::make_shared<LaneFailure>()),
      number_(options.number),
      groups_(options.groups) {
  if (!threaded_) return;
  failure_->add(this);
  try {
    thread_ = start_thread(fmt::format("runs the lane \"{}\"", name_), [this] { work(); });
  } catch (...) {
    failure_->remove(this);
    throw;
  }
}

Lane::~Lane() {
  if (!threaded_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  failure_->remove(this);
}

void Lane::run(const Item& item) {
  switch (item.kind) {
    case Item::Kind::call:
      return run_call(item);
    case Item::Kind::transfers_start:
      return item.group->group_start();
    case Item::Kind::transfers_end:
      return item.group->group_end();
  }
}

void Lane::run_call(const Item& item) {
  const Call& call = item.call;
  switch (call.operation) {
    case Operation::all_reduce:
      return item.group->all_reduce(item.out, call.count, call.dtype, call.op);
    case Operation::reduce_scatter:
      return item.group->reduce_scatter(item.in, item.out, call.count, call.dtype, call.op);
    case Operation::all_gather:
      return item.group->all_gather(item.in, item.out, call.count, call.dtype);
    case Operation::all_to_all:
      return item.group->all_to_all(item.in, item.out, call.count, call.dtype);
    case Operation::all_to_all_v:
      return item.group->all_to_all_v(item.in, item.sent, item.out, item.received, call.dtype);
    case Operation::broadcast:
      return item.group->broadcast(item.out, call.count, call.dtype, call.peer);
    case Operation::send:
      return item.group->send(item.in, call.count, call.dtype, call.peer);
    case Operation::receive:
      return item.group->receive(item.out, call.count, call.dtype, call.peer);
    case Operation::barrier:
      return item.group->barrier();
    case Operation::count:
      return;
  }
}

void Lane::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || finished_ < submitted_; });
    // Items issued before the end still run, as peers may be waiting for them, unless a lane has failed.
    if (finished_ == submitted_) return;
    const size_t slot = slot_of(finished_);
    const Item item = ring_[slot];
    running_ = item.group;
    lock.unlock();
    std::exception_ptr thrown;
    const double start = steady_seconds();
    // A failure set after this check aborts the item through running_.
    if (!failure_->first()) {
      try {
        if (queue_ != nullptr) queue_->follow_ops(static_cast<int>(slot));
        run(item);
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    log_times(item, start, steady_seconds());
    lock.lock();
    running_ = nullptr;
    if (thrown) {
      lock.unlock();
      failure_->set(std::exchange(thrown, nullptr));
      lock.lock();
    }
    ++finished_;
    changed_.notify_all();
  }
}

void Lane::give_up() {
  const std::lock_guard lock(mutex_);
  if (running_ != nullptr) running_->abort();
}

template <typename Condition>
void Lane::wait_until(std::unique_lock<std::mutex>& lock, int64_t event, Condition condition) {
  if (condition()) return;
  const double start = steady_seconds();
  changed_.wait(lock, condition);
  if (logs()) log_wait(event, start, steady_seconds());
}

void Lane::log_wait(int64_t event, double start_seconds, double end_seconds) {
  log_->add({.kind = Event::Kind::wait,
             .channel = {number_, -1},
             .awaits = event,
             .name = wait_name,
             .start_seconds = start_seconds,
             .end_seconds = end_seconds});
}

int64_t Lane::event_of_ticket(Ticket ticket) const {
  const Logged& logged = logged_[slot_of(ticket - 1)];
  return logged.ticket == ticket ? logged.event : -1;
}

Event Lane::event_of(const Item& item) const {
  const Call& call = item.call;
  const int size = item.group->size();
  // For these, `count` is one rank's piece of the whole.
  const bool of_pieces = call.operation == Operation::reduce_scatter || call.operation == Operation::all_gather ||
                         call.operation == Operation::all_to_all;
  const int64_t bytes = call.count * dtype_bytes(call.dtype) * (of_pieces ? size : 1);
  const int64_t sent = call.operation == Operation::all_to_all_v ? sent_bytes(item.sent, call.dtype, item.group->rank())
                                                                 : sent_bytes(call, item.group->rank(), size);
  const auto group = std::find(groups_.begin(), groups_.end(), item.group);
  return {.kind = Event::Kind::collective,
          .channel = {number_, static_cast<int8_t>(group == groups_.end() ? -1 : group - groups_.begin())},
          .ranks = size,
          .name = operation_name(call.operation),
          .shape = fmt::format("{} {} over {} ranks", format_bytes(static_cast<double>(bytes)), dtype_name(call.dtype),
                               size),
          .bytes_moved = bytes,
          .sent_bytes = sent};
}

void Lane::log_item(Item& item, Ticket ticket) {
  if (!logs()) return;
  item.log = log_;
  if (item.kind == Item::Kind::call) last_event_ = item.event = log_->add(event_of(item));
  logged_[slot_of(ticket - 1)] = {ticket, last_event_};
}

void Lane::log_times(const Item& item, double start_seconds, double end_seconds) {
  if (item.log == nullptr) return;
  gathered_.push_back(item.event);
  if (item.kind != Item::Kind::call) gathering_ = item.kind == Item::Kind::transfers_start;
  if (gathering_) return;
  for (const int64_t event : gathered_) item.log->set_times(event, start_seconds, end_seconds);
  gathered_.clear();
}

void Lane::run_and_log(const Item& item) {
  const bool is_whole = item.kind == Item::Kind::transfers_end || (item.kind == Item::Kind::call && !gathering_);
  const double start = steady_seconds();
  run(item);
  if (is_whole) item.group->synchronize();
  const double end = steady_seconds();
  log_times(item, start, end);
  if (is_whole) log_wait(last_event_, start, end);
}

Lane::Ticket Lane::issue(Item item) {
  if (alone(item.group)) return done;
  if (!threaded_ && queue_ == nullptr) {
    log_item(item, issued_ + 1);
    run(item);
    return ++issued_;
  }
  if (!threaded_) {
    // A later item may have reused this mark. Waiting for that later work, which comes after this item's, is enough.
    const auto mark = static_cast<int>(slot_of(issued_));
    queue_->mark_ops(mark);
    queue_->follow_ops(mark);
    log_item(item, issued_ + 1);
    if (item.log != nullptr) {
      run_and_log(item);
    } else {
      run(item);
    }
    queue_->mark_work(mark);
    return ++issued_;
  }
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, -1, [&] { return submitted_ - finished_ < static_cast<Ticket>(ring_size); });
    log_item(item, submitted_ + 1);
    const size_t slot = slot_of(submitted_);
    if (queue_ != nullptr) queue_->mark_ops(static_cast<int>(slot));
    ring_[slot] = item;
    issued_ = ++submitted_;
  }
  changed_.notify_all();
  return issued_;
}

void Lane::wait(Ticket ticket) {
  if (ticket == done) return;
  if (!threaded_ && queue_ == nullptr) {
    if (logs()) log_wait(event_of_ticket(ticket), 0, 0);
    return;
  }
  if (!threaded_) return queue_->ops_follow(static_cast<int>(slot_of(ticket - 1)));
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, event_of_ticket(ticket), [&] { return finished_ >= ticket; });
  }
  if (const std::exception_ptr failure = failure_->first()) std::rethrow_exception(failure);
}

Lane::Ticket Lane::all_reduce(Communicator* group, void* data, int64_t count, DType dtype, ReduceOp op) {
  return issue({.group = group, .call = {Operation::all_reduce, dtype, op, 0, count}, .in = data, .out = data});
}

Lane::Ticket Lane::reduce_scatter(Communicator* group, const void* in, void* out, int64_t count, DType dtype) {
  return issue(
      {.group = group, .call = {Operation::reduce_scatter, dtype, ReduceOp::sum, 0, count}, .in = in, .out = out});
}

Lane::Ticket Lane::all_gather(Communicator* group, const void* in, void* out, int64_t count, DType dtype) {
  return issue({.group = group, .call = {Operation::all_gather, dtype, ReduceOp::sum, 0, count}, .in = in, .out = out});
}

Lane::Ticket Lane::all_to_all(Communicator* group, const void* in, void* out, int64_t count, DType dtype) {
  return issue({.group = group, .call = {Operation::all_to_all, dtype, ReduceOp::sum, 0, count}, .in = in, .out = out});
}

Lane::Ticket Lane::all_to_all_v(Communicator* group, const void* in, std::span<const PeerPart> sent, void* out,
                                std::span<const PeerPart> received, DType dtype) {
  int64_t count = 0;
  for (const PeerPart& part : sent) count += part.count;
  return issue({.group = group,
                .call = {Operation::all_to_all_v, dtype, ReduceOp::sum, 0, count},
                .in = in,
                .out = out,
                .sent = sent,
                .received = received});
}

Lane::Ticket Lane::broadcast(Communicator* group, void* data, int64_t count, DType dtype, int root) {
  return issue({.group = group, .call = {Operation::broadcast, dtype, ReduceOp::sum, root, count}, .out = data});
}

Lane::Ticket Lane::send(Communicator* group, const void* data, int64_t count, DType dtype, int peer) {
  return issue({.group = group, .call = {Operation::send, dtype, ReduceOp::sum, peer, count}, .in = data});
}

Lane::Ticket Lane::receive(Communicator* group, void* data, int64_t count, DType dtype, int peer) {
  return issue({.group = group, .call = {Operation::receive, dtype, ReduceOp::sum, peer, count}, .out = data});
}

Lane::Ticket Lane::barrier(Communicator* group) { return issue({.group = group}); }

void Lane::transfers_start(Communicator* group) { issue({.kind = Item::Kind::transfers_start, .group = group}); }

Lane::Ticket Lane::transfers_end(Communicator* group) {
  return issue({.kind = Item::Kind::transfers_end, .group = group});
}

}  // namespace gptrain::comm
