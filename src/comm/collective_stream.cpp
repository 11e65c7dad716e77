#include "comm/collective_stream.h"

namespace gptrain {
namespace {

bool alone(const Communicator* group) { return group == nullptr || group->size() == 1; }

}  // namespace

CollectiveStream::CollectiveStream(bool threaded) : threaded_(threaded) {
  if (threaded_) thread_ = std::thread([this] { work(); });
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
    const Item item = ring_[static_cast<size_t>(finished_) % ring_.size()];
    const bool failed = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      if (!failed) run(item);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (thrown) failure_ = thrown;
    ++finished_;
    changed_.notify_all();
  }
}

CollectiveStream::Ticket CollectiveStream::issue(const Item& item) {
  if (alone(item.group)) return done;
  if (!threaded_) {
    run(item);
    return done;
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return submitted_ - finished_ < static_cast<Ticket>(ring_.size()); });
    ring_[static_cast<size_t>(submitted_) % ring_.size()] = item;
    issued_ = ++submitted_;
  }
  changed_.notify_all();
  return issued_;
}

void CollectiveStream::wait(Ticket ticket) {
  if (!threaded_ || ticket == done) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finished_ >= ticket; });
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
