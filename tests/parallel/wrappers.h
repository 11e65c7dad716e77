// Decorators for tests: a backend and a communicator that forward every call, and a world whose groups are wrapped.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "ops/backend.h"
#include "ops/side_queue.h"

namespace gptrain::testing {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  const Target& target() const override { return inner_.target(); }
  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  void set_scratch(std::byte* data, int64_t bytes) override { inner_.set_scratch(data, bytes); }
  void upload(void* device, const void* host, int64_t bytes) override { inner_.upload(device, host, bytes); }
  void download(void* host, const void* device, int64_t bytes) override { inner_.download(host, device, bytes); }
  void synchronize() override { inner_.synchronize(); }
  std::unique_ptr<PackedLinear> pack(const LinearForward& op, const Allocate& allocate) override {
    return inner_.pack(op, allocate);
  }
  std::unique_ptr<SideQueue> make_side_queue() override { return inner_.make_side_queue(); }
#define GPTRAIN_FORWARD(Op) \
  void run(const Op& op) override { inner_.run(op); }
  GPTRAIN_FOR_EACH_OP(GPTRAIN_FORWARD)
#undef GPTRAIN_FORWARD

 protected:
  Backend& inner_;
};

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    inner_->all_reduce(data, count, dtype, op);
  }
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    inner_->reduce_scatter(in, out, count, dtype, op);
  }
  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    inner_->all_gather(in, out, count, dtype);
  }
  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    inner_->all_to_all(in, out, count, dtype);
  }
  void all_to_all_v(const void* in, std::span<const PeerPart> sent, void* out, std::span<const PeerPart> received,
                    DType dtype) override {
    inner_->all_to_all_v(in, sent, out, received, dtype);
  }
  void broadcast(void* data, int64_t count, DType dtype, int root) override {
    inner_->broadcast(data, count, dtype, root);
  }
  void send(const void* data, int64_t count, DType dtype, int peer) override { inner_->send(data, count, dtype, peer); }
  void receive(void* data, int64_t count, DType dtype, int peer) override { inner_->receive(data, count, dtype, peer); }
  void group_start() override { inner_->group_start(); }
  void group_end() override { inner_->group_end(); }
  void barrier() override { inner_->barrier(); }
  void synchronize() override { inner_->synchronize(); }
  void abort() override { inner_->abort(); }

 private:
  std::unique_ptr<Communicator> inner_;
};

// Passes every group that the rank is a member of to `wrap`, with its number in the order of creation.
class WrappingWorld final : public World {
 public:
  using Wrap = std::function<std::unique_ptr<Communicator>(size_t, std::unique_ptr<Communicator>)>;

  WrappingWorld(World& inner, Wrap wrap) : inner_(inner), wrap_(std::move(wrap)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool of_processes() const override { return inner_.of_processes(); }
  const std::string& host(int rank) const override { return inner_.host(rank); }
  std::unique_ptr<Communicator> make_group(const std::vector<int>& ranks, const GroupUse& use) override {
    auto group = inner_.make_group(ranks, use);
    return group ? wrap_(num_groups_++, std::move(group)) : nullptr;
  }

 private:
  World& inner_;
  Wrap wrap_;
  size_t num_groups_ = 0;
};

}  // namespace gptrain::testing
