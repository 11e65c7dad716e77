// Memory, traffic and FLOPs of ring attention: closed formulas, the plan, and a run.
#include <fmt/format.h>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.h"
#include "comm/plan.h"
#include "fit/choose_step.h"
#include "layouts.h"
#include "model_fixture.h"
#include "ranks.h"
#include "touched.h"
#include "wrappers.h"

namespace test_ring_plan {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

RunConfig config_of(int64_t world_size, const Overrides& more) {
  Overrides overrides = {"model.num_heads=4", "model.hidden_size=40", "model.sequence_length=20",    "batch.micro=2",
                         "batch.global=4",    "model.dropout=0.1",    "parallel.context_method=ring"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return small_config(Family::llama, overrides, world_size);
}

// Counts the bytes that a rank sends to others on the context lane.
class CountingSends final : public ForwardingCommunicator {
 public:
  CountingSends(std::unique_ptr<Communicator> inner, Traffic& traffic)
      : ForwardingCommunicator(std::move(inner)), traffic_(traffic) {}

  void send(const void* data, int64_t count, DType dtype, int peer) override {
    ++traffic_.calls;
    traffic_.sent_bytes += count * dtype_bytes(dtype);
    ForwardingCommunicator::send(data, count, dtype, peer);
  }

 private:
  Traffic& traffic_;
};

}  // namespace

// A pass over a block sends a rank's keys and values to the c - 1 others, in C; backward sends their gradients, in f32,
// too. A block that is recomputed sends keys and values once more.
TEST_CASE("rings send the bytes of the closed formula, in the plan and in a run") {
  for (const auto& [context, recompute, dtype] :
       {std::tuple<int64_t, std::string, std::string>{2, "none", "fp32"}, {5, "block", "bf16"}}) {
    INFO("context " << context << " recompute " << recompute);
    const RunConfig config = config_of(context, {fmt::format("parallel.context={}", context), "parallel.zero=1",
                                                 "memory.recompute=" + recompute, "precision.compute=" + dtype});
    const ModelConfig& model = config.model;
    const int64_t times = model.num_layers * config.batch.accumulation * (context - 1);
    const int64_t passes = recompute == "none" ? 2 : 3;
    const int64_t elements =
        config.batch.micro * (model.sequence_length / context) * 2 * model.num_kv_heads * model.head_size;
    const Traffic expected{
        .calls = times * (passes + 1),
        .sent_bytes = times * elements * (passes * dtype_bytes(config.precision.compute) + dtype_bytes(DType::f32))};
    std::vector<Traffic> counted(static_cast<size_t>(context)), planned(static_cast<size_t>(context));
    Wrapping wrapping;
    wrapping.group = [&](int64_t rank, LaneKind lane, GroupKind, std::unique_ptr<Communicator> group) {
      if (lane != LaneKind::context) return group;
      return std::unique_ptr<Communicator>(
          std::make_unique<CountingSends>(std::move(group), counted[static_cast<size_t>(rank)]));
    };
    on_ranks(config, context, nullptr, wrapping, [&](RankContext& rank) {
      RandomBatches batches(config, 0, rank.groups);
      rank.step.run(1e-3, batches);
      planned[static_cast<size_t>(rank.groups.rank())] =
          rank.plan.traffic[static_cast<size_t>(LaneKind::context)][static_cast<size_t>(GroupKind::context)]
                           [static_cast<size_t>(Operation::send)];
    });
    for (size_t rank = 0; rank < counted.size(); ++rank) {
      INFO("rank " << rank);
      for (const Traffic& traffic : {counted[rank], planned[rank]}) {
        CHECK(traffic.calls == expected.calls);
        CHECK(traffic.sent_bytes == expected.sent_bytes);
      }
    }
  }
}

TEST_CASE("the bytes that ranks of a ring touch are their plan's") {
  for (const auto& [world_size, more] :
       {std::pair<int64_t, Overrides>{
            5, {"parallel.context=5", "data.mask_documents=true", "precision.compute=bf16", "memory.recompute=ffn"}},
        {4, {"parallel.context=2", "parallel.pipeline=2", "memory.recompute=selective"}}}) {
    INFO(more.front());
    const RunConfig config = config_of(world_size, more);
    Wrapping wrapping;
    check_touched_after(wrapping, config, world_size);
    train_on_ranks(config, world_size, 2, nullptr, 0, wrapping);
  }
}

TEST_CASE("activations of a ring shrink with its size, and all its ranks have equal work") {
  const auto config_with = [](int64_t layers, int64_t context, int64_t tokens) {
    return parse_config(
        fmt::format(R"({{"model": {{"preset": "gpt2-124m", "num_layers": {}, "sequence_length": {}, "dropout": 0}},
                         "data": {{"train": [{{"path": "x"}}]}},
                         "batch": {{"global": 1, "micro": 1}}, "precision": {{"compute": "bf16"}},
                         "parallel": {{"context": {}{}}}, "optimizer": {{"lr": 1e-3}},
                         "run": {{"steps": 1, "out": "x"}}}})",
                    layers, tokens, context, context > 1 ? R"(, "context_method": "ring")" : ""),
        {}, "test", context);
  };
  Target target;
  target.num_threads = 1;
  const auto plan = [&](const RunConfig& config, int64_t rank) {
    return plan_rank({config, target, config.parallel.context}, rank);
  };
  const auto activations = [&](int64_t layers, int64_t context) {
    return plan(config_with(layers, context, 1024), 0).memory().arenas[MemoryClass::activations];
  };
  const int64_t whole = activations(4, 1) - activations(3, 1);
  for (const int64_t context : {2, 4}) CHECK(activations(4, context) - activations(3, context) == whole / context);
  const RunConfig config = config_with(1, 4, 8192);
  const Flops of_all = plan(config_with(1, 1, 8192), 0).total().model_flops;
  const Flops first = plan(config, 0).total().executed_flops;
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(plan(config, rank).total().model_flops * 4 == of_all);
    CHECK(plan(config, rank).total().executed_flops == first);
  }
}

}  // namespace test_ring_plan
