// Communicator whose ranks are threads of one process.
//
// A collective: publish the buffers, meet, read the peers' buffers and write one's own, meet again. The last rank to
// arrive compares all published calls, so a disagreement is found before any byte moves. Sends and receives meet in one
// mailbox per ordered pair of ranks. Nothing waits for ever: when a rank leaves, ranks that need it fail; when every
// remaining rank waits, all fail with a list of their calls.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <fmt/format.h>
#include <mutex>
#include <sched.h>
#include <span>
#include <string>

#include "base/control_group.h"
#include "base/error.h"
#include "comm/gathered_transfers.h"
#include "comm/reduce.h"

namespace gptrain::inline comm {
namespace {

constexpr int spins_per_yield = 200;

struct LocalCall : Call {
  const void* in = nullptr;
  void* out = nullptr;
  std::span<const PeerPart> sent = {}, received = {};  // for all_to_all_v
};

struct Transfer {
  LocalCall call;
  bool posted = false;  // true: the send is in its mailbox
  bool done = false;
};

// State shared by the ranks of a group.
class LocalGroup {
 public:
  LocalGroup(int size, int num_threads)
      : size_(size), calls_(size), left_(size), given_up_(size), mailboxes_(calls_.size() * calls_.size()) {
    // Spins only if each rank has a core; with fewer cores spinning delays the others.
    if (std::max(size, num_threads) <= usable_cores()) spins_ = 50 * spins_per_yield;
  }

  int size() const { return size_; }
  // REQUIRES: called between meet(rank, call) and the collective's last meet(rank).
  const LocalCall& call(int rank) const { return calls_[rank]; }

  // Publishes `call` and returns when every rank has published the same.
  void meet(int rank, const LocalCall& call) {
    std::unique_lock lock(mutex_);
    calls_[rank] = call;
    arrive(lock, rank, true);
  }
  void meet(int rank) {
    std::unique_lock lock(mutex_);
    arrive(lock, rank, false);
  }

  // Runs the transfers together and clears the list.
  void exchange(int rank, std::vector<Transfer>& transfers) {
    std::unique_lock lock(mutex_);
    const auto finished = [&] {
      if (!failure_.empty()) return false;  // a sender that failed may have freed its buffer
      while (move_some(rank, transfers)) changed();
      std::erase_if(transfers, [](const Transfer& transfer) { return transfer.done; });
      if (transfers.empty()) return true;
      calls_[rank] = transfers.front().call;
      for (const Transfer& transfer : transfers) {
        for (const int needed : {transfer.call.peer, rank})
          if (is_gone(needed)) fail_left(needed, rank, transfer.call);
      }
      return false;
    };
    wait(lock, finished);
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    left_[rank] = true;
    ++num_left_;
    changed();
  }
  // Gives up the group. Any thread, also while the rank's thread is in a call. A collective that all ranks have begun
  // runs to its end: they read each other's buffers, which must not be freed before.
  void give_up(int rank) {
    const std::lock_guard lock(mutex_);
    given_up_[rank] = true;
    changed();
  }

 private:
  // The slot of one ordered pair. The sender clears its slot once the message is taken; its next send waits for that.
  struct Mailbox {
    enum class State : uint8_t { empty, offered, taken } state = State::empty;
    LocalCall offer;
  };

  bool is_gone(int rank) const { return left_[rank] || given_up_[rank]; }

  // Waits at a barrier; generation_ is its reversing sense. At the first barrier of a call the last to arrive compares
  // the calls.
  void arrive(std::unique_lock<std::mutex>& lock, int rank, bool first) {
    const uint64_t mine = generation_;
    if (++num_arrived_ == size_ && failure_.empty()) {
      if (first) check_agreement();
      if (failure_.empty()) {
        num_arrived_ = 0;
        ++generation_;
      }
      changed();
    }
    wait(lock, [&] {
      if (generation_ != mine) return true;
      for (int peer = 0; peer < size_ && first; ++peer)
        if (is_gone(peer)) fail_left(peer, rank, call(rank));
      return false;
    });
  }

  void check_agreement() {
    for (int rank = 1; rank < size_; ++rank) {
      if (const char* what = difference(call(0), call(rank)))
        fail(disagreement(what, 0, call(0), rank, call(rank)).lines());
    }
    if (failure_.empty() && call(0).operation == Operation::all_to_all_v) check_parts_agree();
  }

  void check_parts_agree() {
    for (int source = 0; source < size_; ++source) {
      for (int rank = 0; rank < size_; ++rank) {
        Call sent = call(source), received = call(rank);
        sent.count = call(source).sent[rank].count;
        received.count = call(rank).received[source].count;
        if (sent.count != received.count) fail(disagreement("count", source, sent, rank, received).lines());
      }
    }
  }

  // Advances `rank`'s transfers by one pass; returns false if none could move. Sends go first; both kinds go in call
  // order, so that the n-th send of a pair meets its n-th receive. Copies are made under the lock: a sender cannot
  // leave or fail while its buffer is read.
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
      const LocalCall& call = transfer.call;
      if (transfer.done || call.operation != Operation::receive) continue;
      Mailbox& mailbox = mailbox_of(call.peer, rank);
      if (mailbox.state != Mailbox::State::offered) continue;
      if (const char* what = transfer_difference(mailbox.offer, call)) {
        fail(disagreement(what, call.peer, mailbox.offer, rank, call).lines());
        return false;
      }
      if (call.count > 0) std::memcpy(call.out, mailbox.offer.in, call.count * dtype_bytes(call.dtype));
      mailbox.state = Mailbox::State::taken;
      transfer.done = moved = true;
    }
    return moved;
  }

  Mailbox& mailbox_of(int source, int destination) {
    return mailboxes_[static_cast<size_t>(source) * calls_.size() + static_cast<size_t>(destination)];
  }

  // Returns when ready() is true. Throws if the group has failed, or if all ranks that have not left wait, so that
  // ready() can never become true.
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    while (!ready()) {
      if (failure_.empty() && ++num_stuck_ + num_left_ == size_) fail_stuck();
      if (!failure_.empty() && peer_gone_) throw PeerGone(failure_.text());
      if (!failure_.empty()) throw Error(ExitCode::device, failure_);
      const uint64_t seen = change_;
      lock.unlock();
      // Yields the core now and then, as the awaited rank may run on the same one.
      for (int spin = 0; spin < spins_ && change_ == seen; ++spin)
        if (spin % spins_per_yield == spins_per_yield - 1) sched_yield();
      lock.lock();
      change_seen_.wait(lock, [&] { return change_ != seen; });
    }
  }

  // Wakes all ranks to check their conditions again; a rank that checks in vain counts as stuck again.
  void changed() {
    ++change_;
    num_stuck_ = 0;
    change_seen_.notify_all();
  }

  // Stores the first failure, which is the cause. The group stays failed.
  void fail(Lines message) {
    if (failure_.empty()) failure_ = std::move(message);
    changed();
  }
  void fail_left(int peer, int rank, const Call& call) {
    if (!failure_.empty()) return;
    peer_gone_ = true;
    fail(Lines("rank {} left the group while rank {} waits in {}", peer, rank, describe(call)));
  }
  void fail_stuck() {
    Lines message("the ranks of a group wait for each other:");
    for (int rank = 0; rank < size_; ++rank)
      message += left_[rank] ? Lines("\n  rank {} left", rank) : Lines("\n  rank {} in {}", rank, describe(call(rank)));
    fail(std::move(message));
  }

  const int size_;
  int spins_ = 0;
  std::mutex mutex_;  // guards the members below, except for reads by call()
  std::condition_variable change_seen_;
  std::atomic<uint64_t> change_ = 0;
  std::vector<LocalCall> calls_;
  std::vector<bool> left_, given_up_;
  std::vector<Mailbox> mailboxes_;  // [source * size + destination]
  uint64_t generation_ = 0;
  int num_arrived_ = 0;
  int num_stuck_ = 0;  // ranks that checked in vain since the last change
  int num_left_ = 0;
  Lines failure_;           // message of the first failure; empty: none
  bool peer_gone_ = false;  // true: the failure is a rank that left
};

// Copies, unless both are the same address (data already in place).
void copy_part(std::byte* out, const std::byte* in, int64_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, bytes);
}

class LocalCommunicator final : public GatheredTransfers {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), inputs_(group_->size()) {}
  LocalCommunicator(const LocalCommunicator&) = delete;
  LocalCommunicator& operator=(const LocalCommunicator&) = delete;
  ~LocalCommunicator() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    begin({{Operation::all_reduce, dtype, op, 0, count}, data, data});
    if (size() == 1) return;
    const auto slice = [&](int rank) { return count * rank / size(); };
    // Until it holds the result, only rank r touches slice r of its own data.
    const int64_t first = slice(rank_);
    reduce_peers(first, slice(rank_ + 1) - first, address(data, first, dtype), dtype, op);
    group_->meet(rank_);
    for (int rank = 0; rank < size(); ++rank)
      copy_part(address(data, slice(rank), dtype), address(group_->call(rank).in, slice(rank), dtype),
                (slice(rank + 1) - slice(rank)) * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    begin({{Operation::reduce_scatter, dtype, op, 0, count}, in, out});
    reduce_peers(rank_ * count, count, out, dtype, op);
    group_->meet(rank_);
  }

  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    begin({{Operation::all_gather, dtype, ReduceOp::sum, 0, count}, in, out});
    for (int rank = 0; rank < size(); ++rank)
      copy_part(address(out, rank * count, dtype), address(group_->call(rank).in, 0, dtype),
                count * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    begin({{Operation::all_to_all, dtype, ReduceOp::sum, 0, count}, in, out});
    for (int rank = 0; rank < size(); ++rank)
      copy_part(address(out, rank * count, dtype), address(group_->call(rank).in, rank_ * count, dtype),
                count * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out, std::span<const PeerPart> received,
                    DType dtype) override {
    check_parts(sent, received, dtype, rank_, size());
    begin({{Operation::all_to_all_v, dtype, ReduceOp::sum, 0, 0}, in, out, sent, received});
    for (int rank = 0; rank < size(); ++rank) {
      const LocalCall& peer = group_->call(rank);
      const PeerPart& part = peer.sent[rank_];
      copy_part(address(out, received[rank].first, dtype), address(peer.in, part.first, dtype),
                part.count * dtype_bytes(dtype));
    }
    group_->meet(rank_);
  }

  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    begin({{Operation::broadcast, dtype, ReduceOp::sum, root, count}, data, data});
    copy_part(address(data, 0, dtype), address(group_->call(root).in, 0, dtype), count * dtype_bytes(dtype));
    group_->meet(rank_);
  }

  void barrier() override { begin({}); }
  void synchronize() override {}  // every call has finished when it returns
  void abort() override { group_->give_up(rank_); }

 private:
  // out = reduction over ranks of elements [first, first + count) of their published buffers.
  void reduce_peers(int64_t first, int64_t count, void* out, DType dtype, ReduceOp op) {
    for (int rank = 0; rank < size(); ++rank) inputs_[rank] = address(group_->call(rank).in, first, dtype);
    reduce(inputs_, out, count, dtype, op);
  }

  void begin(const LocalCall& call) {
    check_collective(call);
    group_->meet(rank_, call);
  }

  void add_transfer(const Call& call, const void* in, void* out) override {
    transfers_.push_back({.call = {call, in, out}});
  }
  void run_transfers() override { group_->exchange(rank_, transfers_); }

  std::shared_ptr<LocalGroup> group_;
  int rank_;
  std::vector<const void*> inputs_;  // operands of a reduction
  std::vector<Transfer> transfers_;  // queued since group_start
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_group(int size, int num_threads) {
  if (size < 1) throw Error(ExitCode::device, "a group needs at least one rank, not {}", size);
  const auto group = std::make_shared<LocalGroup>(size, num_threads);
  std::vector<std::unique_ptr<Communicator>> handles;
  for (int rank = 0; rank < size; ++rank) handles.push_back(std::make_unique<LocalCommunicator>(group, rank));
  return handles;
}

}  // namespace gptrain::comm
