#include "device_communicator.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/gathered_transfers.h"
#include "kernels/rank_sum.h"

namespace gptrain::inline cuda {
namespace {

// Total bytes of all ranks up to which an all-reduce is faster as one exchange than as two.
constexpr int64_t small_bytes = 256 * 1024;

// Returns the size of one element per rank: the least for each half.
int64_t least_half_bytes(int size) { return int64_t{8} * size; }

// Alignment of the halves and of messages within them, where possible: a kernel reads 16 bytes at a time only from
// multiples of 16, and device memory delivers 32.
constexpr int64_t piece_alignment = 256;

int64_t half_bytes(int64_t scratch_bytes, int size) {
  const int64_t aligned = scratch_bytes / 2 / piece_alignment * piece_alignment;
  return aligned >= least_half_bytes(size) ? aligned : scratch_bytes / 16 * 8;
}

class DeviceCommunicator final : public GatheredTransfers {
 public:
  DeviceCommunicator(std::unique_ptr<Links> links, DeviceMemory& scratch, bool in_pairs)
      : links_(std::move(links)),
        in_pairs_(in_pairs),
        scratch_(scratch.data()),
        scratch_bytes_(scratch.bytes()),
        half_bytes_(half_bytes(scratch_bytes_, size())) {
    if (scratch_bytes_ < 2 * least_half_bytes(size())) {
      throw Error(ExitCode::device,
                  "a group of {} ranks on devices is too large: sums need {} bytes of memory, and {} are planned",
                  size(), 2 * least_half_bytes(size()), scratch_bytes_);
    }
    transfers_.reserve(static_cast<size_t>(2 * size()));
  }

  int rank() const override { return links_->rank(); }
  int size() const override { return links_->size(); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    check_collective({Operation::all_reduce, dtype, op, 0, count});
    const int64_t whole_bytes = count * dtype_bytes(dtype) * size();
    if (!in_pairs_ || whole_bytes <= std::min(small_bytes, scratch_bytes_))
      return reduce_gathered(data, count, dtype, op);
    const auto slice = [&](int rank) { return count * rank / size(); };
    std::byte* const own = address(data, slice(rank()), dtype);
    reduce_slices(data, own, slice, dtype, op);
    if (count % size() == 0) {
      links_->all_gather(own, data, count / size() * dtype_bytes(dtype));
    } else {
      gather_slices(data, slice, dtype);
    }
  }

  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    check_collective({Operation::reduce_scatter, dtype, op, 0, count});
    reduce_slices(
        in, out, [&](int rank) { return count * rank; }, dtype, op);
  }

  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    check_collective({Operation::all_gather, dtype, ReduceOp::sum, 0, count});
    if (count > 0) links_->all_gather(in, out, count * dtype_bytes(dtype));
  }

  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    check_collective({Operation::all_to_all, dtype, ReduceOp::sum, 0, count});
    const int64_t bytes = count * dtype_bytes(dtype);
    for_each_distance(0, [&](int to, int from) {
      transfers_.push_back({to, address(in, to * count, dtype), nullptr, bytes});
      transfers_.push_back({from, nullptr, address(out, from * count, dtype), bytes});
    });
    exchange();
  }

  void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out, std::span<const PeerPart> received,
                    DType dtype) override {
    check_parts(sent, received, dtype, rank(), size());
    check_collective({Operation::all_to_all_v, dtype, ReduceOp::sum, 0, 0});
    for_each_distance(0, [&](int to, int from) {
      const PeerPart& leaves = sent[static_cast<size_t>(to)];
      const PeerPart& comes = received[static_cast<size_t>(from)];
      transfers_.push_back({to, address(in, leaves.first, dtype), nullptr, leaves.count * dtype_bytes(dtype)});
      transfers_.push_back({from, nullptr, address(out, comes.first, dtype), comes.count * dtype_bytes(dtype)});
    });
    exchange();
  }

  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    check_collective({Operation::broadcast, dtype, ReduceOp::sum, root, count});
    if (count > 0) links_->broadcast(data, count * dtype_bytes(dtype), root);
  }

  void barrier() override {
    check_collective({});
    links_->all_gather(scratch_ + rank(), scratch_, 1);
    links_->synchronize();
  }
  void synchronize() override { links_->synchronize(); }
  void abort() override {}  // Links abort the work of their groups themselves

 private:
  // Calls body(to, from) for each distance in the ring of ranks, from `first` on.
  template <typename Body>
  void for_each_distance(int first, const Body& body) {
    for (int distance = first; distance < size(); ++distance)
      body((rank() + distance) % size(), (rank() + size() - distance) % size());
  }

  void add_transfer(const Call& call, const void* in, void* out) override {
    transfers_.push_back({call.peer, in, out, call.count * dtype_bytes(call.dtype)});
  }
  void run_transfers() override { exchange(); }

  // Skips empty transfers, as the peer does.
  void exchange() {
    std::erase_if(transfers_, [](const Links::Transfer& transfer) { return transfer.bytes == 0; });
    if (!transfers_.empty()) links_->exchange(transfers_);
    transfers_.clear();
  }

  // Returns the number of elements per rank in one half.
  int64_t longest_piece(int64_t width) const {
    const int64_t most = half_bytes_ / (size() * width), whole = piece_alignment / width;
    return most > whole ? most / whole * whole : most;
  }

  // out = this rank's slice of the reduction of `in`. Slices are [slice(r), slice(r + 1)), of lengths that differ by at
  // most one element. `out` may be this rank's slice of `in`.
  template <typename Slice>
  void reduce_slices(const void* in, void* out, const Slice& slice, DType dtype, ReduceOp op) {
    const int64_t width = dtype_bytes(dtype);
    const int64_t longest = longest_piece(width);
    int64_t end = 0;
    for (int rank = 0; rank < size(); ++rank) end = std::max(end, slice(rank + 1) - slice(rank));
    // If there are several pieces, receives one on a second queue while the previous one is summed.
    const bool overlaps = end > longest;
    int half = 0;
    for (int64_t start = 0; start < end; start += longest, half = 1 - half) {
      const auto count_of = [&](int rank) {
        return std::clamp<int64_t>(slice(rank + 1) - slice(rank) - start, 0, longest);
      };
      const int64_t count = count_of(rank());
      std::byte* const received = scratch_ + half * half_bytes_;
      if (start >= 2 * longest) links_->moves_follow_sums(half);
      for_each_distance(1, [&](int to, int from) {
        transfers_.push_back({to, address(in, slice(to) + start, dtype), nullptr, count_of(to) * width});
        transfers_.push_back({from, nullptr, received + from * count * width, count * width});
      });
      exchange();
      if (overlaps) links_->sums_follow_moves();
      if (count > 0) {
        cuda_run(RankSum{.own = address(in, slice(rank()) + start, dtype),
                         .received = received,
                         .rank = rank(),
                         .size = size(),
                         .out = address(out, start, dtype),
                         .count = count,
                         .dtype = dtype,
                         .op = op},
                 overlaps ? links_->sums() : links_->stream());
      }
      if (overlaps) links_->mark_sums(half);
    }
    // Sums run in order, so the last one comes after all others.
    if (overlaps) links_->moves_follow_sums(1 - half);
  }

  // Gathers the other ranks' slices. This rank's own must be in place.
  template <typename Slice>
  void gather_slices(void* data, const Slice& slice, DType dtype) {
    const auto bytes_of = [&](int rank) { return (slice(rank + 1) - slice(rank)) * dtype_bytes(dtype); };
    for_each_distance(1, [&](int to, int from) {
      transfers_.push_back({to, address(data, slice(rank()), dtype), nullptr, bytes_of(rank())});
      transfers_.push_back({from, nullptr, address(data, slice(from), dtype), bytes_of(from)});
    });
    exchange();
  }

  // data = reduction of the ranks' data; every rank receives all of it, in pieces that the scratch memory holds.
  void reduce_gathered(void* data, int64_t count, DType dtype, ReduceOp op) {
    const int64_t longest = scratch_bytes_ / (size() * dtype_bytes(dtype));
    for (int64_t start = 0; start < count; start += longest) {
      std::byte* const piece = address(data, start, dtype);
      const int64_t length = std::min(longest, count - start);
      links_->all_gather(piece, scratch_, length * dtype_bytes(dtype));
      cuda_run(RankSum{.own = piece,
                       .received = scratch_,
                       .rank = rank(),
                       .size = size(),
                       .out = piece,
                       .count = length,
                       .dtype = dtype,
                       .op = op},
               links_->stream());
    }
  }

  std::unique_ptr<Links> links_;
  const bool in_pairs_;
  std::byte* const scratch_;
  const int64_t scratch_bytes_, half_bytes_;
  std::vector<Links::Transfer> transfers_;  // queued for the next exchange
};

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Links> links, DeviceMemory& scratch,
                                                       bool in_pairs) {
  return std::make_unique<DeviceCommunicator>(std::move(links), scratch, in_pairs);
}

}  // namespace gptrain::cuda
