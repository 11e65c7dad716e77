// Communicator whose ranks are threads of one process.
//
// A collective is: publish the buffers, meet, read the peers' buffers and write one's own, meet again. The last rank to
// arrive compares what everyone published, so a disagreement is found before any byte moves. Sends and receives meet in
// one mailbox per ordered pair of ranks. Nothing waits for ever: when a rank leaves, those who need it fail, and when
// every rank that is left waits, all fail with a list of what each waits for.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <fmt/format.h>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>

#include "base/error.h"
#include "comm/communicator.h"

namespace gptrain {
namespace {

enum class Operation : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  barrier,
  send,
  receive
};

// What one rank asks for, with its buffers.
struct Call {
  Operation operation = Operation::barrier;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;  // of reductions
  int peer = 0;                 // root of a broadcast, other side of a send or receive
};

std::string describe(const Call& call) {
  static constexpr const char* names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                          "broadcast",  "barrier",        "send",       "receive"};
  static constexpr const char* reductions[] = {"sum", "max", "min"};
  std::string where;
  if (call.operation <= Operation::reduce_scatter) where = fmt::format(", {}", reductions[static_cast<int>(call.op)]);
  if (call.operation == Operation::broadcast) where = fmt::format(", root {}", call.peer);
  if (call.operation == Operation::send) where = fmt::format(" to rank {}", call.peer);
  if (call.operation == Operation::receive) where = fmt::format(" from rank {}", call.peer);
  const auto what =
      call.operation == Operation::barrier ? "" : fmt::format("{} x {}", call.count, dtype_name(call.dtype));
  return fmt::format("{}({}{})", names[static_cast<int>(call.operation)], what, where);
}

// The first thing in which two calls of one collective differ; null if they agree.
const char* difference(const Call& a, const Call& b) {
  if (a.operation != b.operation) return "operation";
  if (a.count != b.count) return "count";
  if (a.dtype != b.dtype) return "type";
  if (a.op != b.op) return "reduction";
  if (a.peer != b.peer) return "root";
  return nullptr;
}

struct Transfer {
  Call call;
  bool posted = false;  // a send that is in its mailbox
  bool done = false;
};

// The state that the ranks of a group share.
class LocalGroup {
 public:
  explicit LocalGroup(int size)
      : size_(size),
        calls_(static_cast<size_t>(size)),
        left_(static_cast<size_t>(size)),
        mailboxes_(calls_.size() * calls_.size()) {
    // Spinning only steals time from the others when there are more ranks than cores.
    if (static_cast<unsigned>(size) <= std::thread::hardware_concurrency()) spins_ = 2000;
  }

  int size() const { return size_; }
  // Valid between meet(rank, call) and the collective's last meet(rank).
  const Call& call(int rank) const { return calls_[static_cast<size_t>(rank)]; }

  // Publishes `call` and returns when every rank has published the same one.
  void meet(int rank, const Call& call) {
    std::unique_lock lock(mutex_);
    calls_[static_cast<size_t>(rank)] = call;
    arrive(lock, rank, true);
  }
  void meet(int rank) {
    std::unique_lock lock(mutex_);
    arrive(lock, rank, false);
  }

  // Runs the transfers together and empties the list.
  void exchange(int rank, std::vector<Transfer>& transfers) {
    std::unique_lock lock(mutex_);
    const auto finished = [&] {
      if (!failure_.empty()) return false;  // a sender that failed may have freed what it offered
      while (move_some(rank, transfers)) changed();
      std::erase_if(transfers, [](const Transfer& transfer) { return transfer.done; });
      if (transfers.empty()) return true;
      calls_[static_cast<size_t>(rank)] = transfers.front().call;
      for (const Transfer& transfer : transfers)
        if (left_[static_cast<size_t>(transfer.call.peer)]) fail_left(transfer.call.peer, rank, transfer.call);
      return false;
    };
    wait(lock, finished);
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[static_cast<size_t>(rank)] = true;
    ++num_left_;
    changed();
  }

 private:
  // The slot of one ordered pair. A sender clears its own slot, so that its next send waits for this one to be taken.
  struct Mailbox {
    enum class State : uint8_t { empty, offered, taken } state = State::empty;
    Call offer;
  };

  // A barrier; generation_ plays the part of a reversing sense. The last to arrive checks for the others.
  void arrive(std::unique_lock<std::mutex>& lock, int rank, bool check) {
    const uint64_t mine = generation_;
    if (++num_arrived_ == size_ && failure_.empty()) {
      if (check) check_agreement();
      if (failure_.empty()) {
        num_arrived_ = 0;
        ++generation_;
      }
      changed();
    }
    wait(lock, [&] {
      if (generation_ != mine) return true;
      for (int peer = 0; peer < size_; ++peer)
        if (left_[static_cast<size_t>(peer)]) fail_left(peer, rank, call(rank));
      return false;
    });
  }

  void check_agreement() {
    for (int rank = 1; rank < size_; ++rank) {
      if (const char* what = difference(call(0), call(rank)))
        fail(fmt::format("the ranks of a group disagree on the {}: rank 0 calls {}, rank {} calls {}", what,
                         describe(call(0)), rank, describe(call(rank))));
    }
  }

  // Advances `rank`'s transfers by one pass; false if nothing could move. Sends go first, and both kinds in the order
  // they were asked for, so that the n-th send of a pair meets its n-th receive. Copies are made under the lock: a
  // sender can never leave, or fail, while its buffer is being read.
  bool move_some(int rank, std::vector<Transfer>& transfers) {
    bool moved = false;
    for (Transfer& transfer : transfers) {
      if (transfer.done || transfer.call.operation != Operation::send) continue;
      Mailbox& mailbox = mailbox_of(rank, transfer.call.peer);
      if (transfer.posted && mailbox.state == Mailbox::State::taken) {
        mailbox.state = Mailbox::State::empty;
        transfer.done = moved = true;
      } else if (!transfer.posted && mailbox.state == Mailbox::State::empty) {
        mailbox = {Mailbox::State::offered, transfer.call};
        transfer.posted = moved = true;
      }
    }
    for (Transfer& transfer : transfers) {
      const Call& call = transfer.call;
      if (transfer.done || call.operation != Operation::receive) continue;
      Mailbox& mailbox = mailbox_of(call.peer, rank);
      if (mailbox.state != Mailbox::State::offered) continue;
      if (mailbox.offer.count != call.count || mailbox.offer.dtype != call.dtype) {
        fail(fmt::format("the ranks of a group disagree on the {}: rank {} calls {}, rank {} calls {}",
                         mailbox.offer.count != call.count ? "count" : "type", call.peer, describe(mailbox.offer), rank,
                         describe(call)));
        return false;
      }
      if (call.count > 0)
        std::memcpy(call.out, mailbox.offer.in, static_cast<size_t>(call.count * dtype_bytes(call.dtype)));
      mailbox.state = Mailbox::State::taken;
      transfer.done = moved = true;
    }
    return moved;
  }

  Mailbox& mailbox_of(int source, int destination) {
    return mailboxes_[static_cast<size_t>(source) * calls_.size() + static_cast<size_t>(destination)];
  }

  // Returns when `ready` holds; throws when the group has failed or nobody is left who could make it hold.
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    while (!ready()) {
      if (failure_.empty() && ++num_stuck_ + num_left_ == size_) fail_stuck();
      if (!failure_.empty()) throw Error(ExitCode::device, failure_);
      const uint64_t seen = change_;
      lock.unlock();
      for (int spin = 0; spin < spins_ && change_ == seen; ++spin) {
      }
      lock.lock();
      change_seen_.wait(lock, [&] { return change_ != seen; });
    }
  }

  // Wakes everyone to look again; who looks in vain counts as stuck anew.
  void changed() {
    ++change_;
    num_stuck_ = 0;
    change_seen_.notify_all();
  }

  // The first failure is the cause; the group stays failed.
  void fail(std::string message) {
    if (failure_.empty()) failure_ = std::move(message);
    changed();
  }
  void fail_left(int peer, int rank, const Call& call) {
    if (failure_.empty())
      fail(fmt::format("rank {} left the group while rank {} waits in {}", peer, rank, describe(call)));
  }
  void fail_stuck() {
    std::string message = "the ranks of a group wait for each other:";
    for (int rank = 0; rank < size_; ++rank)
      message += left_[static_cast<size_t>(rank)] ? fmt::format("\n  rank {} left", rank)
                                                  : fmt::format("\n  rank {} in {}", rank, describe(call(rank)));
    fail(std::move(message));
  }

  const int size_;
  int spins_ = 0;
  std::mutex mutex_;  // guards all that follows, but for the reads that call() allows
  std::condition_variable change_seen_;
  std::atomic<uint64_t> change_ = 0;
  std::vector<Call> calls_;
  std::vector<bool> left_;
  std::vector<Mailbox> mailboxes_;  // [source * size + destination]
  uint64_t generation_ = 0;
  int num_arrived_ = 0;
  int num_stuck_ = 0;  // looked since the last change and found nothing to do
  int num_left_ = 0;
  std::string failure_;  // empty: none
};

template <typename T>
T combine(T a, T b, ReduceOp op) {
  if (op == ReduceOp::sum) {
    // Integer sums wrap around instead of being undefined.
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) + static_cast<std::make_unsigned_t<T>>(b));
    return a + b;
  }
  // A NaN of any rank wins.
  const bool keep = op == ReduceOp::max ? a > b : a < b;
  return keep || a != a ? a : b;
}

float widen(bf16 value) { return to_float(value); }
template <typename T>
T widen(T value) {
  return value;
}
void narrow(float value, bf16& out) { out = to_bf16(value); }
template <typename T>
void narrow(T value, T& out) {
  out = value;
}

// out[i] = reduction over ranks of in[first + i]. Works through a block at a time, which is read from every rank before
// any of it is written, so that out may be this rank's own in + first.
template <typename T>
void reduce(const LocalGroup& group, int64_t first, int64_t count, T* out, ReduceOp op) {
  using Wide = decltype(widen(T{}));
  constexpr int64_t block_size = 1024;
  Wide block[block_size];
  for (int64_t start = 0; start < count; start += block_size) {
    const int64_t n = std::min(block_size, count - start);
    for (int rank = 0; rank < group.size(); ++rank) {
      const T* in = static_cast<const T*>(group.call(rank).in) + first + start;
      if (rank == 0) {
        for (int64_t i = 0; i < n; ++i) block[i] = widen(in[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) block[i] = combine(block[i], widen(in[i]), op);
      }
    }
    for (int64_t i = 0; i < n; ++i) narrow(block[i], out[start + i]);
  }
}

// The same for the types that reductions support; others are refused before the ranks meet.
void reduce(const LocalGroup& group, int64_t first, int64_t count, void* out, DType dtype, ReduceOp op) {
  if (dtype == DType::f32) reduce(group, first, count, static_cast<float*>(out), op);
  if (dtype == DType::bf16) reduce(group, first, count, static_cast<bf16*>(out), op);
  if (dtype == DType::f64) reduce(group, first, count, static_cast<double*>(out), op);
  if (dtype == DType::i32) reduce(group, first, count, static_cast<int32_t*>(out), op);
  if (dtype == DType::i64) reduce(group, first, count, static_cast<int64_t*>(out), op);
}

// Copies unless both are the same place (an operand that is already where it belongs).
void copy(std::byte* out, const std::byte* in, int64_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, static_cast<size_t>(bytes));
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}
  LocalCommunicator(const LocalCommunicator&) = delete;
  LocalCommunicator& operator=(const LocalCommunicator&) = delete;
  ~LocalCommunicator() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    begin({Operation::all_reduce, data, data, count, dtype, op, 0});
    if (size() == 1) return;
    const auto slice = [&](int rank) { return count * rank / size(); };
    // Nobody else touches slice r of rank r's data until it holds the result.
    const int64_t first = slice(rank_);
    reduce(*group_, first, slice(rank_ + 1) - first, place(data, first, dtype), dtype, op);
    group_->meet(rank_);
    for (int rank = 0; rank < size(); ++rank)
      copy(place(data, slice(rank), dtype), place(group_->call(rank).in, slice(rank), dtype),
           (slice(rank + 1) - slice(rank)) * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    begin({Operation::reduce_scatter, in, out, count, dtype, op, 0});
    reduce(*group_, rank_ * count, count, out, dtype, op);
    group_->meet(rank_);
  }

  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    begin({Operation::all_gather, in, out, count, dtype, ReduceOp::sum, 0});
    for (int rank = 0; rank < size(); ++rank)
      copy(place(out, rank * count, dtype), place(group_->call(rank).in, 0, dtype), count * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    begin({Operation::all_to_all, in, out, count, dtype, ReduceOp::sum, 0});
    for (int rank = 0; rank < size(); ++rank)
      copy(place(out, rank * count, dtype), place(group_->call(rank).in, rank_ * count, dtype),
           count * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    begin({Operation::broadcast, data, data, count, dtype, ReduceOp::sum, root});
    copy(place(data, 0, dtype), place(group_->call(root).in, 0, dtype), count * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void send(const void* data, int64_t count, DType dtype, int peer) override {
    transfer({Operation::send, data, nullptr, count, dtype, ReduceOp::sum, peer});
  }
  void receive(void* data, int64_t count, DType dtype, int peer) override {
    transfer({Operation::receive, nullptr, data, count, dtype, ReduceOp::sum, peer});
  }
  void group_start() override {
    if (grouping_) throw Error(ExitCode::device, "group_start inside a group of transfers");
    grouping_ = true;
  }
  void group_end() override {
    if (!grouping_) throw Error(ExitCode::device, "group_end without group_start");
    grouping_ = false;
    group_->exchange(rank_, transfers_);
  }
  void barrier() override { begin({}); }
  void synchronize() override {}  // every call has finished when it returns

 private:
  static const std::byte* place(const void* data, int64_t element, DType dtype) {
    return static_cast<const std::byte*>(data) + element * dtype_bytes(dtype);
  }
  static std::byte* place(void* data, int64_t element, DType dtype) {
    return static_cast<std::byte*>(data) + element * dtype_bytes(dtype);
  }

  void check(const Call& call) const {
    if (call.count < 0 || call.peer < 0 || call.peer >= size())
      throw Error(ExitCode::device, "{}: count or rank out of range in a group of {}", describe(call), size());
    if (call.operation <= Operation::reduce_scatter && (call.dtype == DType::u8 || call.dtype == DType::u16))
      throw Error(ExitCode::device, "{}: no reductions of this type", describe(call));
  }

  void begin(const Call& call) {
    check(call);
    if (grouping_) throw Error(ExitCode::device, "{} inside a group of transfers", describe(call));
    group_->meet(rank_, call);
  }

  void transfer(const Call& call) {
    check(call);
    transfers_.push_back({.call = call});
    if (!grouping_) group_->exchange(rank_, transfers_);
  }

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  bool grouping_ = false;
  std::vector<Transfer> transfers_;  // gathered since group_start
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_group(int size) {
  if (size < 1) throw Error(ExitCode::device, "a group needs at least one rank, not {}", size);
  const auto group = std::make_shared<LocalGroup>(size);
  std::vector<std::unique_ptr<Communicator>> handles;
  for (int rank = 0; rank < size; ++rank) handles.push_back(std::make_unique<LocalCommunicator>(group, rank));
  return handles;
}

}  // namespace gptrain
