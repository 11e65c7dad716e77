#include "comm/staged.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "comm/gathered_transfers.h"

namespace gptrain::inline comm {
namespace {

class StagedCommunicator final : public GatheredTransfers {
 public:
  StagedCommunicator(Communicator& host, SideQueue& queue, DeviceMemory& staging)
      : host_(host), queue_(queue), staging_(staging.data()), staging_bytes_(staging.bytes()) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    in_pieces({Operation::all_reduce, dtype, op, 0, count}, 1, [&](int64_t first, int64_t n) {
      download(staging_, address(data, first, dtype), n, dtype);
      host_.all_reduce(staging_, n, dtype, op);
      upload(address(data, first, dtype), staging_, n, dtype);
    });
  }

  // Reduces piece by piece. The host group leaves the sum in this rank's own piece of the staging memory.
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    in_pieces({Operation::reduce_scatter, dtype, op, 0, count}, size(), [&](int64_t first, int64_t n) {
      for (int rank = 0; rank < size(); ++rank)
        download(address(staging_, rank * n, dtype), address(in, rank * count + first, dtype), n, dtype);
      void* const own = address(staging_, rank() * n, dtype);
      host_.reduce_scatter(staging_, own, n, dtype, op);
      upload(address(out, first, dtype), own, n, dtype);
    });
  }

  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    const bool own_in_place = in == address(out, rank() * count, dtype);
    in_pieces({Operation::all_gather, dtype, ReduceOp::sum, 0, count}, size(), [&](int64_t first, int64_t n) {
      void* const own = address(staging_, rank() * n, dtype);
      download(own, address(in, first, dtype), n, dtype);
      host_.all_gather(own, staging_, n, dtype);
      for (int rank = 0; rank < size(); ++rank) {
        if (rank == this->rank() && own_in_place) continue;
        upload(address(out, rank * count + first, dtype), address(staging_, rank * n, dtype), n, dtype);
      }
    });
  }

  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    in_pieces({Operation::all_to_all, dtype, ReduceOp::sum, 0, count}, 2 * size(), [&](int64_t first, int64_t n) {
      std::byte* const received = address(staging_, size() * n, dtype);
      for (int rank = 0; rank < size(); ++rank)
        download(address(staging_, rank * n, dtype), address(in, rank * count + first, dtype), n, dtype);
      host_.all_to_all(staging_, received, n, dtype);
      for (int rank = 0; rank < size(); ++rank)
        upload(address(out, rank * count + first, dtype), address(received, rank * n, dtype), n, dtype);
    });
  }

  // Runs as a group of transfers.
  void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out, std::span<const PeerPart> received,
                    DType dtype) override {
    check_parts(sent, received, dtype, rank(), size());
    group_start();
    for (int peer = 0; peer < size(); ++peer) {
      const PeerPart& leaves = sent[peer];
      const PeerPart& comes = received[peer];
      send(address(in, leaves.first, dtype), leaves.count, dtype, peer);
      receive(address(out, comes.first, dtype), comes.count, dtype, peer);
    }
    group_end();
  }

  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    in_pieces({Operation::broadcast, dtype, ReduceOp::sum, root, count}, 1, [&](int64_t first, int64_t n) {
      if (rank() == root) download(staging_, address(data, first, dtype), n, dtype);
      host_.broadcast(staging_, n, dtype, root);
      if (rank() != root) upload(address(data, first, dtype), staging_, n, dtype);
    });
  }

  void barrier() override { host_.barrier(); }
  void synchronize() override { host_.synchronize(); }
  void abort() override { host_.abort(); }

 private:
  struct Transfer {
    Call call;
    const void* in;
    void* out;
    int64_t moved = 0;           // elements moved in earlier rounds
    bool first_of_pair = false;  // first pending transfer of its peer and direction: moves in this round
    int64_t moving = 0;          // elements moved in this round

    bool sends() const { return call.operation == Operation::send; }
  };

  void download(void* to, const void* from, int64_t count, DType dtype) {
    queue_.download(to, from, count * dtype_bytes(dtype));
  }
  void upload(void* to, const void* from, int64_t count, DType dtype) {
    queue_.upload(to, from, count * dtype_bytes(dtype));
  }

  // Calls body(first element, number of elements) for pieces of which `parts` fit the staging memory. Calls it once
  // even for 0 elements, so that a disagreement with peers is found.
  template <typename Body>
  void in_pieces(const Call& call, int64_t parts, const Body& body) {
    check_collective(call);
    const int64_t longest = staging_bytes_ / (parts * dtype_bytes(call.dtype));
    if (call.count > longest) check_count(call);
    int64_t first = 0;
    do {
      const int64_t n = std::min(longest, call.count - first);
      body(first, n);
      first += n;
    } while (first < call.count);
  }

  // Checks that all ranks have the same count: counts that differ by whole pieces would not be noticed in any piece.
  void check_count(const Call& call) {
    int64_t most_and_least[] = {call.count, -call.count};
    host_.all_reduce(most_and_least, 2, DType::i64, ReduceOp::max);
    if (most_and_least[0] == -most_and_least[1]) return;
    throw Error(ExitCode::device,
                "the ranks of a group disagree on the count: rank {} calls {}, others {} to {} elements", rank(),
                describe(call), -most_and_least[1], most_and_least[0]);
  }

  void add_transfer(const Call& call, const void* in, void* out) override { transfers_.push_back({call, in, out}); }
  void run_transfers() override {
    while (!transfers_.empty()) run_round();
  }

  // Moves the next piece of the first pending transfer of each peer and direction. The n-th round of a pair is so on
  // both sides.
  void run_round() {
    const int64_t slot_bytes = staging_bytes_ / (2 * size());
    const auto slot = [&](const Transfer& t) {
      return staging_ + (2 * t.call.peer + (t.sends() ? 0 : 1)) * slot_bytes;
    };
    std::vector<bool> taken(2 * size());
    for (Transfer& t : transfers_) {
      const auto pair = static_cast<size_t>(2 * t.call.peer + (t.sends() ? 0 : 1));
      t.first_of_pair = !taken[pair];
      taken[pair] = true;
      t.moving = std::min(slot_bytes / dtype_bytes(t.call.dtype), t.call.count - t.moved);
    }
    const auto for_each_moving = [&](const auto& body) {
      for (Transfer& t : transfers_)
        if (t.first_of_pair) body(t);
    };
    for_each_moving([&](const Transfer& t) {
      if (t.sends()) download(slot(t), address(t.in, t.moved, t.call.dtype), t.moving, t.call.dtype);
    });
    host_.group_start();
    for_each_moving([&](const Transfer& t) {
      if (t.sends()) {
        host_.send(slot(t), t.moving, t.call.dtype, t.call.peer);
      } else {
        host_.receive(slot(t), t.moving, t.call.dtype, t.call.peer);
      }
    });
    host_.group_end();
    for_each_moving([&](Transfer& t) {
      if (!t.sends()) upload(address(t.out, t.moved, t.call.dtype), slot(t), t.moving, t.call.dtype);
      t.moved += t.moving;
    });
    std::erase_if(transfers_, [](const Transfer& t) { return t.first_of_pair && t.moved == t.call.count; });
  }

  Communicator& host_;
  SideQueue& queue_;
  std::byte* const staging_;
  const int64_t staging_bytes_;
  std::vector<Transfer> transfers_;  // queued since group_start, in call order
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, SideQueue& queue, DeviceMemory& staging) {
  return std::make_unique<StagedCommunicator>(host, queue, staging);
}

}  // namespace gptrain::comm
