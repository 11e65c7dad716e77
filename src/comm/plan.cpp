#include "comm/plan.h"

#include "base/amount.h"

namespace gptrain {
namespace {

class PlanCommunicator final : public Communicator {
 public:
  PlanCommunicator(int rank, int size, TrafficTable& traffic) : rank_(rank), size_(size), traffic_(traffic) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(void*, int64_t count, DType dtype, ReduceOp) override {
    note(Operation::all_reduce, 2 * others_share(bytes_of(count, dtype)));
  }
  void reduce_scatter(const void*, void*, int64_t count, DType dtype, ReduceOp) override {
    note(Operation::reduce_scatter, (size_ - 1) * bytes_of(count, dtype));
  }
  void all_gather(const void*, void*, int64_t count, DType dtype) override {
    note(Operation::all_gather, (size_ - 1) * bytes_of(count, dtype));
  }
  void all_to_all(const void*, void*, int64_t count, DType dtype) override {
    note(Operation::all_to_all, (size_ - 1) * bytes_of(count, dtype));
  }
  void all_to_all_v(const void*, std::span<const PeerPart> sent, void*, std::span<const PeerPart>,
                    DType dtype) override {
    int64_t count = -sent[static_cast<size_t>(rank_)].count;
    for (const PeerPart& part : sent) count += part.count;
    note(Operation::all_to_all_v, bytes_of(count, dtype));
  }
  void broadcast(void*, int64_t count, DType dtype, int root) override {
    const Amount bytes = bytes_of(count, dtype), share = others_share(bytes);
    const bool is_root = rank_ == root;
    if (size_ == 2) return note(Operation::broadcast, is_root ? bytes : Amount());
    note(Operation::broadcast, is_root ? 2 * share : share);
  }
  void send(const void*, int64_t count, DType dtype, int) override {
    note(Operation::send, bytes_of(count, dtype));
  }
  void receive(void*, int64_t, DType, int) override {}
  void group_start() override {}
  void group_end() override {}
  void barrier() override {}
  void synchronize() override {}
  void abort() override {}

 private:
  static Amount bytes_of(int64_t count, DType dtype) { return Amount(count) * dtype_bytes(dtype); }
  // bytes * (size - 1) / size, whose product may be too large.
  Amount others_share(Amount bytes) const {
    return Amount(bytes.value() / size_) * (size_ - 1) + bytes.value() % size_ * (size_ - 1) / size_;
  }
  void note(Operation operation, Amount sent_bytes) {
    Traffic& traffic = traffic_[static_cast<size_t>(operation)];
    traffic.calls += 1;
    traffic.sent_bytes = (sent_bytes + traffic.sent_bytes).value();
  }

  int rank_, size_;
  TrafficTable& traffic_;
};

}  // namespace

std::unique_ptr<Communicator> make_plan_communicator(int rank, int size, TrafficTable& traffic) {
  return std::make_unique<PlanCommunicator>(rank, size, traffic);
}

}  // namespace gptrain
