// A group that moves nothing and adds up the bytes of each call, by the rule of plans and profiles.
#pragma once

#include "comm/communicator.h"
#include "comm/plan.h"

namespace gptrain::testing {

// One rank of a group of `size`. Borrows `traffic`.
class CountingGroup final : public Communicator {
 public:
  CountingGroup(int rank, int size, TrafficTable& traffic) : rank_(rank), size_(size), traffic_(traffic) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(void*, int64_t count, DType dtype, ReduceOp op) override {
    note({.operation = Operation::all_reduce, .dtype = dtype, .op = op, .peer = 0, .count = count});
  }
  void reduce_scatter(const void*, void*, int64_t count, DType dtype, ReduceOp op) override {
    note({.operation = Operation::reduce_scatter, .dtype = dtype, .op = op, .peer = 0, .count = count});
  }
  void all_gather(const void*, void*, int64_t count, DType dtype) override {
    note({.operation = Operation::all_gather, .dtype = dtype, .op = ReduceOp::sum, .peer = 0, .count = count});
  }
  void all_to_all(const void*, void*, int64_t count, DType dtype) override {
    note({.operation = Operation::all_to_all, .dtype = dtype, .op = ReduceOp::sum, .peer = 0, .count = count});
  }
  void all_to_all_v(const void*, std::span<const PeerPart> sent, void*, std::span<const PeerPart>,
                    DType dtype) override {
    note(Operation::all_to_all_v, sent_bytes(sent, dtype, rank_));
  }
  void broadcast(void*, int64_t count, DType dtype, int root) override {
    note({.operation = Operation::broadcast, .dtype = dtype, .op = ReduceOp::sum, .peer = root, .count = count});
  }
  void send(const void*, int64_t count, DType dtype, int peer) override {
    note({.operation = Operation::send, .dtype = dtype, .op = ReduceOp::sum, .peer = peer, .count = count});
  }
  void receive(void*, int64_t, DType, int) override {}
  void group_start() override {}
  void group_end() override {}
  void barrier() override {}
  void synchronize() override {}
  void abort() override {}

 private:
  void note(const Call& call) { note(call.operation, sent_bytes(call, rank_, size_)); }
  void note(Operation operation, int64_t bytes) {
    Traffic& traffic = traffic_[static_cast<size_t>(operation)];
    traffic.calls += 1;
    traffic.sent_bytes += bytes;
  }

  int rank_, size_;
  TrafficTable& traffic_;
};

}  // namespace gptrain::testing
