#include "comm/plan.h"

#include "base/amount.h"

namespace gptrain::inline comm {
namespace {

class PlanCommunicator final : public Communicator {
 public:
  PlanCommunicator(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce(void*, int64_t, DType, ReduceOp) override {}
  void reduce_scatter(const void*, void*, int64_t, DType, ReduceOp) override {}
  void all_gather(const void*, void*, int64_t, DType) override {}
  void all_to_all(const void*, void*, int64_t, DType) override {}
  void all_to_all_v(const void*, std::span<const PeerPart>, void*, std::span<const PeerPart>, DType) override {}
  void broadcast(void*, int64_t, DType, int) override {}
  void send(const void*, int64_t, DType, int) override {}
  void receive(void*, int64_t, DType, int) override {}
  void group_start() override {}
  void group_end() override {}
  void barrier() override {}
  void synchronize() override {}
  void abort() override {}

 private:
  int rank_, size_;
};

}  // namespace

int64_t sent_bytes(const Call& call, int rank, int size) {
  const Amount bytes = Amount(call.count) * dtype_bytes(call.dtype);
  // Computes bytes * (size - 1) / size without the product, which may overflow.
  const Amount others_share = Amount(bytes.value() / size) * (size - 1) + bytes.value() % size * (size - 1) / size;
  switch (call.operation) {
    case Operation::all_reduce:
      return (2 * others_share).value();
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::all_to_all:
      return ((size - 1) * bytes).value();
    case Operation::broadcast:
      if (size == 2) return rank == call.peer ? bytes.value() : 0;
      return (rank == call.peer ? 2 * others_share : others_share).value();
    case Operation::send:
      return bytes.value();
    case Operation::all_to_all_v:
    case Operation::receive:
    case Operation::barrier:
    case Operation::count:
      break;
  }
  return 0;
}

int64_t sent_bytes(std::span<const PeerPart> sent, DType dtype, int rank) {
  int64_t count = -sent[rank].count;
  for (const PeerPart& part : sent) count += part.count;
  return (Amount(count) * dtype_bytes(dtype)).value();
}

std::unique_ptr<Communicator> make_plan_communicator(int rank, int size) {
  return std::make_unique<PlanCommunicator>(rank, size);
}

}  // namespace gptrain::comm
