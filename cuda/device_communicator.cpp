#include "device_communicator.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "kernels/rank_sum.h"

namespace gptrain {
namespace {

// All ranks' parts of an all-reduce that costs less as one exchange than as two.
constexpr int64_t small_bytes = 256 * 1024;

const std::byte* place(const void* data, int64_t element, DType dtype) {
  return static_cast<const std::byte*>(data) + element * dtype_bytes(dtype);
}
std::byte* place(void* data, int64_t element, DType dtype) {
  return static_cast<std::byte*>(data) + element * dtype_bytes(dtype);
}

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::unique_ptr<Links> links, DeviceMemory& scratch)
      : links_(std::move(links)), scratch_(scratch.data()), scratch_bytes_(scratch.bytes()) {
    // Otherwise what all_reduce leaves over after equal parts would not fit.
    if (scratch_bytes_ < int64_t{64} * size() * size())
      throw Error(ExitCode::device, "too many ranks in a group on devices: {}", size());
    transfers_.reserve(static_cast<size_t>(2 * size()));
  }

  int rank() const override { return links_->rank(); }
  int size() const override { return links_->size(); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    check({Operation::all_reduce, dtype, op, 0, count});
    const int64_t bytes = count * dtype_bytes(dtype) * size();
    const int64_t part = bytes <= std::min(small_bytes, scratch_bytes_) ? 0 : count / size();
    if (part > 0) {
      std::byte* const own = place(data, rank() * part, dtype);
      reduce_parts(data, own, part, dtype, op);
      links_->all_gather(own, data, part * dtype_bytes(dtype));
    }
    reduce_whole(place(data, part * size(), dtype), count - part * size(), dtype, op);
  }

  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    check({Operation::reduce_scatter, dtype, op, 0, count});
    reduce_parts(in, out, count, dtype, op);
  }

  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    check({Operation::all_gather, dtype, ReduceOp::sum, 0, count});
    if (count > 0) links_->all_gather(in, out, count * dtype_bytes(dtype));
  }

  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    check({Operation::all_to_all, dtype, ReduceOp::sum, 0, count});
    const int64_t bytes = count * dtype_bytes(dtype);
    for (int distance = 0; distance < size(); ++distance) {
      const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
      transfers_.push_back({to, place(in, to * count, dtype), nullptr, bytes});
      transfers_.push_back({from, nullptr, place(out, from * count, dtype), bytes});
    }
    exchange();
  }

  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    check({Operation::broadcast, dtype, ReduceOp::sum, root, count});
    if (count > 0) links_->broadcast(data, count * dtype_bytes(dtype), root);
  }

  void send(const void* data, int64_t count, DType dtype, int peer) override {
    transfer({Operation::send, dtype, ReduceOp::sum, peer, count}, {peer, data, nullptr, count * dtype_bytes(dtype)});
  }
  void receive(void* data, int64_t count, DType dtype, int peer) override {
    transfer({Operation::receive, dtype, ReduceOp::sum, peer, count},
             {peer, nullptr, data, count * dtype_bytes(dtype)});
  }
  void group_start() override {
    if (grouping_) throw Error(ExitCode::device, "group_start inside a group of transfers");
    grouping_ = true;
  }
  void group_end() override {
    if (!grouping_) throw Error(ExitCode::device, "group_end without group_start");
    grouping_ = false;
    exchange();
  }

  void barrier() override {
    check({});
    links_->all_gather(scratch_ + rank(), scratch_, 1);
    links_->synchronize();
  }
  void synchronize() override { links_->synchronize(); }

 private:
  void check(const Call& call) const {
    check_call(call, size());
    if (grouping_) throw Error(ExitCode::device, "{} inside a group of transfers", describe(call));
  }

  void transfer(const Call& call, const Links::Transfer& transfer) {
    check_call(call, size());
    transfers_.push_back(transfer);
    if (!grouping_) exchange();
  }

  // Of nothing nothing is moved: both sides know.
  void exchange() {
    std::erase_if(transfers_, [](const Links::Transfer& transfer) { return transfer.bytes == 0; });
    if (!transfers_.empty()) links_->exchange(transfers_);
    transfers_.clear();
  }

  // out = the reduction of this rank's part of in, of `count` elements. `out` may be that part.
  void reduce_parts(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) {
    const int64_t longest = scratch_bytes_ / (size() * dtype_bytes(dtype));
    for (int64_t first = 0; first < count; first += longest) {
      const int64_t n = std::min(longest, count - first);
      const int64_t bytes = n * dtype_bytes(dtype);
      for (int distance = 1; distance < size(); ++distance) {
        const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
        transfers_.push_back({to, place(in, to * count + first, dtype), nullptr, bytes});
        transfers_.push_back({from, nullptr, scratch_ + from * bytes, bytes});
      }
      exchange();
      sum(place(in, rank() * count + first, dtype), place(out, first, dtype), n, dtype, op);
    }
  }

  // data = the reduction of all of it.
  void reduce_whole(void* data, int64_t count, DType dtype, ReduceOp op) {
    if (count == 0) return;
    links_->all_gather(data, scratch_, count * dtype_bytes(dtype));
    sum(data, data, count, dtype, op);
  }

  void sum(const void* own, void* out, int64_t count, DType dtype, ReduceOp op) {
    cuda_run(RankSum{own, scratch_, rank(), size(), out, count, dtype, op}, links_->stream());
  }

  std::unique_ptr<Links> links_;
  std::byte* const scratch_;
  const int64_t scratch_bytes_;
  bool grouping_ = false;
  std::vector<Links::Transfer> transfers_;  // gathered for the next exchange
};

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Links> links, DeviceMemory& scratch) {
  return std::make_unique<DeviceCommunicator>(std::move(links), scratch);
}

}  // namespace gptrain
