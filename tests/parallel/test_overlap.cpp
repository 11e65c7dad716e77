// Collectives run while ranks compute: a block's reduction begins before the backward of the block before it ends, and
// the next weights are being gathered before the current ones are used.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "ranks.h"
#include "wrappers.h"

namespace test_overlap {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Collectives of one rank's data group that have begun.
struct Begun {
  std::atomic<int> reductions{0};  // sums of gradients
  std::atomic<int> gathers{0};     // gathers of weights
};

class NotingCommunicator final : public ForwardingCommunicator {
 public:
  NotingCommunicator(std::unique_ptr<Communicator> inner, Begun& begun)
      : ForwardingCommunicator(std::move(inner)), begun_(begun) {}

  void all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override {
    if (dtype == DType::f32) ++begun_.reductions;  // f64: losses
    ForwardingCommunicator::all_reduce(data, count, dtype, op);
  }
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override {
    ++begun_.reductions;
    ForwardingCommunicator::reduce_scatter(in, out, count, dtype, op);
  }
  void all_gather(const void* in, void* out, int64_t count, DType dtype) override {
    ++begun_.gathers;
    ForwardingCommunicator::all_gather(in, out, count, dtype);
  }

 private:
  Begun& begun_;
};

// At the end of an action, holds the rank's thread until all collectives issued before it have begun, or a timeout.
class HoldingObserver final : public ActionObserver {
 public:
  HoldingObserver(const Begun& begun, int32_t head) : begun_(begun), head_(head) {}

  bool before(const Action& action) override {
    if (action.kind == ActionKind::reduce) ++issued_reductions_;
    if (action.kind == ActionKind::gather) ++issued_gathers_;
    return true;
  }

  void after(const Action& action) override {
    const bool ends_backward = action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight;
    if (ends_backward && action.unit < head_ - 1 && issued_reductions_ > 0) {
      // All units behind this one, including the next block.
      all_reduced_before = all_reduced_before && has_come(begun_.reductions, issued_reductions_);
      ++held_in_backward;
    }
    if (action.kind == ActionKind::forward && issued_gathers_ > 0 && action.unit < head_) {
      all_gathered_ahead = all_gathered_ahead && has_come(begun_.gathers, issued_gathers_);
      ++held_in_forward;
    }
  }

  int issued_reductions() const { return issued_reductions_; }

  bool all_reduced_before = true, all_gathered_ahead = true;
  int held_in_backward = 0, held_in_forward = 0;

 private:
  static bool has_come(const std::atomic<int>& begun, int issued) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (begun < issued) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }

  const Begun& begun_;
  int32_t head_;
  int issued_reductions_ = 0, issued_gathers_ = 0;
};

}  // namespace

TEST_CASE("the reduction of a block begins before the backward of the block before it ends") {
  for (const char* zero : {"0", "1", "2", "3"}) {
    for (const int64_t tensor : {1, 2}) {
      INFO("zero " << zero << " tensor " << tensor);
      const int64_t world_size = 2 * tensor;
      const RunConfig config = small_config(Family::llama,
                                            {std::string("parallel.zero=") + zero, "model.num_layers=5",
                                             "batch.micro=2", "parallel.tensor=" + std::to_string(tensor)},
                                            world_size);
      const auto head = static_cast<int32_t>(config.model.num_layers) + 1;
      std::vector<Begun> begun(static_cast<size_t>(world_size));
      std::vector<std::unique_ptr<HoldingObserver>> observers;
      for (const Begun& of_rank : begun) observers.push_back(std::make_unique<HoldingObserver>(of_rank, head));
      Wrapping wrapping;
      wrapping.group = [&](int64_t rank, LaneKind, GroupKind kind,
                           std::unique_ptr<Communicator> group) -> std::unique_ptr<Communicator> {
        if (kind != GroupKind::data) return group;
        return std::make_unique<NotingCommunicator>(std::move(group), begun[static_cast<size_t>(rank)]);
      };
      on_ranks(config, world_size, nullptr, wrapping, [&](RankContext& rank) {
        const auto index = static_cast<size_t>(rank.groups.rank());
        RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
        rank.step.state();  // waits for the initial weights
        begun[index].reductions = 0;
        begun[index].gathers = 0;
        rank.step.run(1e-3, batches, observers[index].get());
      });
      for (const auto& observer : observers) {
        CHECK(observer->all_reduced_before);
        CHECK(observer->held_in_backward == config.model.num_layers);  // all except the last block, and the embedding
        CHECK(observer->issued_reductions() == head + 1);
        CHECK(observer->all_gathered_ahead);
        CHECK(observer->held_in_forward == (zero[0] == '3' ? head : 0));
      }
    }
  }
}

}  // namespace test_overlap
