#include "comm/exchange.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/gathered_transfers.h"
#include "comm/reduce.h"

namespace gptrain::inline comm {
namespace {

// Messages below this size are limited by latency, above it by bandwidth.
constexpr int64_t small_bytes = 16 * 1024;
// Most bytes that a rank may receive in one exchange to save a second one: with every rank sending all to all, they
// grow with the group.
constexpr int64_t small_exchange_bytes = 4 * small_bytes;
// Scratch memory per peer: large enough that a message's time exceeds its latency, small enough that received data are
// still in the cache when summed and that large groups need little memory.
constexpr int64_t largest_slot_bytes = 256 * 1024;
constexpr int64_t large_group_bytes = 16 << 20;
int64_t slot_bytes(int group_size) {
  return std::clamp(large_group_bytes / group_size / 64 * 64, small_bytes, largest_slot_bytes);
}

void copy(void* out, const void* in, int64_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, bytes);
}

const std::byte* at(const void* data, int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }
std::byte* at(void* data, int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

class ExchangeCommunicator final : public GatheredTransfers {
 public:
  ExchangeCommunicator(std::unique_ptr<Transport> transport, std::shared_ptr<Activity> activity, std::string group,
                       std::shared_ptr<ExchangeScratch> scratch)
      : transport_(std::move(transport)),
        activity_(std::move(activity)),
        group_(std::move(group)),
        rank_(transport_->rank()),
        size_(transport_->size()),
        scratch_(std::move(scratch)),
        slot_bytes_(scratch_ ? std::min(slot_bytes(size_), scratch_->bytes() / size_ / 64 * 64) : 0),
        inputs_(size_) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    const Running running(*this, {Operation::all_reduce, dtype, op, 0, count});
    const int64_t bytes = count * dtype_bytes(dtype);
    if (bytes <= small_bytes && (size_ - 1) * bytes <= small_exchange_bytes) return reduce_whole(data, count);
    const auto slice = [&](int rank) { return count * rank / size_; };
    reduce_slices(data, at(data, slice(rank_) * dtype_bytes(dtype)), slice);
    gather_slices(at(data, slice(rank_) * dtype_bytes(dtype)), data, slice);
  }

  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    const Running running(*this, {Operation::reduce_scatter, dtype, op, 0, count});
    reduce_slices(in, out, [&](int rank) { return count * rank; });
  }

  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    const Running running(*this, {Operation::all_gather, dtype, ReduceOp::sum, 0, count});
    copy(at(out, rank_ * count * dtype_bytes(dtype)), in, count * dtype_bytes(dtype));
    gather_slices(in, out, [&](int rank) { return count * rank; });
  }

  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    const Running running(*this, {Operation::all_to_all, dtype, ReduceOp::sum, 0, count});
    const int64_t bytes = count * dtype_bytes(dtype);
    copy(at(out, rank_ * bytes), at(in, rank_ * bytes), bytes);
    for_each_peer([&](int to, int from) {
      send_to(to, at(in, to * bytes), bytes);
      receive_from(from, at(out, from * bytes), bytes);
    });
    run();
  }

  void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out, std::span<const PeerPart> received,
                    DType dtype) override {
    check_parts(sent, received, dtype, rank_, size_);
    int64_t all_sent = 0;
    for (const PeerPart& part : sent) all_sent += part.count;
    const Running running(*this, {Operation::all_to_all_v, dtype, ReduceOp::sum, 0, all_sent});
    const int64_t width = dtype_bytes(dtype);
    const auto own = static_cast<size_t>(rank_);
    copy(at(out, received[own].first * width), at(in, sent[own].first * width), sent[own].count * width);
    for_each_peer([&](int to, int from) {
      const PeerPart& leaves = sent[to];
      const PeerPart& comes = received[from];
      call_.count = leaves.count;
      send_to(to, at(in, leaves.first * width), leaves.count * width);
      call_.count = comes.count;
      receive_from(from, at(out, comes.first * width), comes.count * width);
    });
    run();
  }

  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    const Running running(*this, {Operation::broadcast, dtype, ReduceOp::sum, root, count});
    const int64_t bytes = count * dtype_bytes(dtype);
    const bool small = bytes <= small_bytes || size_ == 2;
    const auto slice = [&](int rank) { return count * rank / size_; };
    const auto first = [&](int rank) { return small ? 0 : slice(rank) * dtype_bytes(dtype); };
    const auto length = [&](int rank) { return small ? bytes : slice(rank + 1) * dtype_bytes(dtype) - first(rank); };
    if (rank_ == root) {
      for_each_peer([&](int to, int) { send_to(to, at(data, first(to)), length(to)); });
    } else {
      receive_from(root, at(data, first(rank_)), length(rank_));
    }
    run();
    if (!small) gather_slices(at(data, first(rank_)), data, slice);
  }

  void barrier() override {
    const Running running(*this, {});
    for (int distance = 1; distance < size_; distance *= 2) {
      send_to((rank_ + distance) % size_, nullptr, 0);
      receive_from((rank_ - distance + size_) % size_, nullptr, 0);
      run();
    }
  }
  void synchronize() override {}  // every call has finished when it returns
  void abort() override { transport_->abort(); }

 private:
  // Checks a call and reports it to the activity while the object lives.
  class Running {
   public:
    Running(ExchangeCommunicator& group, const Call& call) : group_(group) {
      group.check_collective(call);
      if (group.scratch_ == nullptr && is_reduction(call.operation))
        throw Error(ExitCode::device, "{} in a group without memory to reduce in", describe(call));
      group.start(call);
    }
    ~Running() { group_.activity_->end(group_.group_); }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    ExchangeCommunicator& group_;
  };

  void start(const Call& call) {
    if (!failure_.empty()) throw Error(ExitCode::device, failure_);
    call_ = call;
    activity_->begin(group_, call);
  }

  void send_to(int peer, const void* data, int64_t bytes) {
    messages_.push_back({call_, peer, true, data, nullptr, bytes});
  }
  void receive_from(int peer, void* data, int64_t bytes) {
    messages_.push_back({call_, peer, false, nullptr, data, bytes});
  }
  void run() {
    try {
      transport_->exchange(messages_);
      messages_.clear();
    } catch (const Error& error) {
      failure_ = error.what();
      throw;
    }
  }

  // Calls body(to, from) for every distance, so that at any time all ranks work on different pairs.
  template <typename Body>
  void for_each_peer(const Body& body) {
    for (int distance = 1; distance < size_; ++distance)
      body((rank_ + distance) % size_, (rank_ - distance + size_) % size_);
  }

  // data = reduction over ranks. Every rank sends all its data to all others.
  void reduce_whole(void* data, int64_t count) {
    const int64_t bytes = count * dtype_bytes(call_.dtype);
    for_each_peer([&](int to, int from) {
      send_to(to, data, bytes);
      receive_from(from, slot(from, bytes), bytes);
    });
    run();
    sum(data, bytes, data, count);
  }

  // out = this rank's slice of the reduction of `in`. Slices are [slice(r), slice(r + 1)), of lengths that differ by at
  // most one element. `out` may be this rank's slice of `in`.
  template <typename Slice>
  void reduce_slices(const void* in, void* out, const Slice& slice) {
    const int64_t width = dtype_bytes(call_.dtype);
    const int64_t step = slot_bytes_ / width;
    // Part of rank r's slice from `start` on; may be empty for a shorter slice.
    const auto part = [&](int rank, int64_t start) {
      const int64_t first = std::min(slice(rank) + start, slice(rank + 1));
      return std::pair{first, std::min(step, slice(rank + 1) - first)};
    };
    int64_t longest = 0;
    for (int rank = 0; rank < size_; ++rank) longest = std::max(longest, slice(rank + 1) - slice(rank));
    for (int64_t start = 0; start < longest; start += step) {
      const auto [mine, count] = part(rank_, start);
      const int64_t bytes = count * width;
      for_each_peer([&](int to, int from) {
        const auto [first, length] = part(to, start);
        send_to(to, at(in, first * width), length * width);
        receive_from(from, slot(from, bytes), bytes);
      });
      run();
      sum(at(in, mine * width), bytes, at(out, start * width), count);
    }
  }

  // out[slice r] = `in` of rank r. This rank's own slice must be in place already.
  template <typename Slice>
  void gather_slices(const void* in, void* out, const Slice& slice) {
    const int64_t width = dtype_bytes(call_.dtype);
    const auto bytes = [&](int rank) { return (slice(rank + 1) - slice(rank)) * width; };
    for_each_peer([&](int to, int from) {
      send_to(to, in, bytes(rank_));
      receive_from(from, at(out, slice(from) * width), bytes(from));
    });
    run();
  }

  // Receive buffer for a peer's piece, aligned to cache lines.
  std::byte* slot(int peer, int64_t bytes) { return scratch_->data() + peer * ((bytes + 63) / 64 * 64); }

  // out = reduction of `own` and the other ranks' slots, in rank order.
  void sum(const void* own, int64_t bytes, void* out, int64_t count) {
    if (count == 0) return;
    for (int rank = 0; rank < size_; ++rank) inputs_[rank] = rank == rank_ ? own : slot(rank, bytes);
    reduce(inputs_, out, count, call_.dtype, call_.op);
  }

  void add_transfer(const Call& call, const void* in, void* out) override {
    if (!failure_.empty()) throw Error(ExitCode::device, failure_);
    messages_.push_back({.call = call,
                         .peer = call.peer,
                         .sending = call.operation == Operation::send,
                         .in = in,
                         .out = out,
                         .bytes = call.count * dtype_bytes(call.dtype)});
  }

  void run_transfers() override {
    if (messages_.empty()) return;
    const Call call = messages_.front().call;
    deliver_own();
    const Running running(*this, call);
    run();
  }

  // Delivers messages from this rank to itself: the n-th send meets the n-th receive.
  void deliver_own() {
    const auto own = [&](bool sending) {
      return std::find_if(messages_.begin(), messages_.end(),
                          [&](const Message& message) { return message.peer == rank_ && message.sending == sending; });
    };
    for (;;) {
      const auto sent = own(true);
      const auto received = own(false);
      if (sent == messages_.end() && received == messages_.end()) return;
      if (sent == messages_.end() || received == messages_.end()) {
        const Call call = (sent == messages_.end() ? received : sent)->call;
        messages_.clear();
        throw Error(ExitCode::device, "the ranks of a group wait for each other without end: rank {} in {}", rank_,
                    describe(call));
      }
      check_arrival(sent->call, sent->bytes, *received, rank_);
      copy(received->out, sent->in, sent->bytes);
      messages_.erase(std::max(sent, received));
      messages_.erase(std::min(sent, received));
    }
  }

  std::unique_ptr<Transport> transport_;
  std::shared_ptr<Activity> activity_;
  std::string group_;
  int rank_;
  int size_;
  const std::shared_ptr<ExchangeScratch> scratch_;  // null: the group cannot reduce
  const int64_t slot_bytes_;                        // scratch bytes per rank
  std::vector<const void*> inputs_;                 // operands of a reduction, by rank
  std::vector<Message> messages_;                   // queued for the next exchange
  Call call_;                                       // the running call
  std::string failure_;                             // message of the first failure; empty: none
};

}  // namespace

int64_t exchange_scratch_bytes(int group_size) { return group_size == 1 ? 0 : group_size * slot_bytes(group_size); }

void check_arrival(const Call& sent, int64_t sent_bytes, const Message& expected, int rank) {
  const bool transfer = sent.operation == Operation::send && expected.call.operation == Operation::receive;
  const char* what = transfer ? transfer_difference(sent, expected.call) : difference(sent, expected.call);
  if (what == nullptr && sent_bytes != expected.bytes) what = "size of a message";
  if (what != nullptr) throw disagreement(what, expected.peer, sent, rank, expected.call);
}

std::unique_ptr<Communicator> make_exchange_communicator(std::unique_ptr<Transport> transport,
                                                         std::shared_ptr<Activity> activity, std::string group,
                                                         std::shared_ptr<ExchangeScratch> scratch) {
  return std::make_unique<ExchangeCommunicator>(std::move(transport), std::move(activity), std::move(group),
                                                std::move(scratch));
}

}  // namespace gptrain::comm
