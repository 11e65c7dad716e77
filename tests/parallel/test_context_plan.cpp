// Memory, traffic and FLOPs of ranks that share sequences: closed formulas, the plan, and a run.
#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <vector>

#include "catch.h"
#include "comm/plan.h"
#include "fit/choose_step.h"
#include "layouts.h"
#include "model_fixture.h"
#include "ranks.h"
#include "touched.h"
#include "wrappers.h"

namespace test_context_plan {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

RunConfig config_of(int64_t context, const Overrides& more, int64_t world_size) {
  Overrides overrides = {"model.num_heads=4", "model.hidden_size=40", "model.sequence_length=20", "batch.micro=2",
                         "batch.global=4",    "model.dropout=0.1",    "data.mask_documents=true"};
  overrides.push_back(fmt::format("parallel.context={}", context));
  overrides.insert(overrides.end(), more.begin(), more.end());
  return small_config(Family::llama, overrides, world_size);
}

// Counts the bytes that a rank sends to others in all-to-alls.
class CountingExchanges final : public ForwardingCommunicator {
 public:
  CountingExchanges(std::unique_ptr<Communicator> inner, Traffic& traffic)
      : ForwardingCommunicator(std::move(inner)), traffic_(traffic) {}

  void all_to_all(const void* in, void* out, int64_t count, DType dtype) override {
    ++traffic_.calls;
    traffic_.sent_bytes += (size() - 1) * count * dtype_bytes(dtype);
    ForwardingCommunicator::all_to_all(in, out, count, dtype);
  }

 private:
  Traffic& traffic_;
};

}  // namespace

// A pass over a block exchanges queries, keys and values, and attention's output: forward (and again where a block is
// recomputed) and backward alike, sequence by sequence. A rank sends (c - 1) / c of its T / c rows, in C. Where there
// are fewer heads of keys than ranks, each goes to c / G ranks. Backward exchanges attention's output, too, if it is
// kept as codes.
TEST_CASE("context groups send the bytes of the closed formula, in the plan and in a run") {
  struct Pass {
    int64_t context;
    std::string recompute, dtype;
    int64_t kept_bits;
  };
  for (const auto& [context, recompute, dtype, kept_bits] :
       {Pass{.context = 2, .recompute = "none", .dtype = "fp32", .kept_bits = 16},
        {.context = 2, .recompute = "block", .dtype = "bf16", .kept_bits = 16},
        {.context = 4, .recompute = "none", .dtype = "fp32", .kept_bits = 8},
        {.context = 4, .recompute = "selective", .dtype = "fp32", .kept_bits = 16}}) {
    INFO("context " << context << " recompute " << recompute << " kept bits " << kept_bits);
    const RunConfig config = config_of(context,
                                       {"memory.recompute=" + recompute, "precision.compute=" + dtype,
                                        "parallel.zero=1", fmt::format("memory.saved_inputs={}", kept_bits)},
                                       context);
    const ModelConfig& model = config.model;
    const int64_t passes = (recompute == "none" ? 2 : 3) * model.num_layers * config.batch.accumulation;
    const int64_t kv_heads = std::max(model.num_kv_heads, context);
    const int64_t cols = model.head_size * (2 * model.num_heads + 2 * kv_heads);
    const int64_t outputs = kept_bits == 8 ? model.num_layers * config.batch.accumulation : 0;  // exchanged again
    const int64_t rows = config.batch.micro * model.sequence_length / context;
    const Traffic expected{.calls = (passes * 2 + outputs) * config.batch.micro,
                           .sent_bytes = (passes * cols + outputs * model.head_size * model.num_heads) * rows *
                                         dtype_bytes(config.precision.compute) * (context - 1) / context};
    std::vector<Traffic> counted(static_cast<size_t>(context)), planned(static_cast<size_t>(context));
    Wrapping wrapping;
    wrapping.group = [&](int64_t rank, LaneKind lane, GroupKind, std::unique_ptr<Communicator> group) {
      if (lane != LaneKind::context) return group;
      return std::unique_ptr<Communicator>(
          std::make_unique<CountingExchanges>(std::move(group), counted[static_cast<size_t>(rank)]));
    };
    on_ranks(config, context, nullptr, wrapping, [&](RankContext& rank) {
      RandomBatches batches(config, 0, rank.groups);
      rank.step.run(1e-3, batches);
      planned[static_cast<size_t>(rank.groups.rank())] =
          rank.plan.traffic[static_cast<size_t>(LaneKind::context)][static_cast<size_t>(GroupKind::context)]
                           [static_cast<size_t>(Operation::all_to_all)];
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

TEST_CASE("the bytes that ranks with parts of sequences touch are their plan's") {
  for (const auto& [world_size, more] : {std::pair<int64_t, Overrides>{2, {"parallel.zero=1", "memory.recompute=ffn"}},
                                         {2, {"memory.saved_inputs=8"}},
                                         {4, {"parallel.tensor=2", "parallel.sequence=true", "model.num_kv_heads=1"}},
                                         {4, {"parallel.pipeline=2", "memory.recompute=selective"}}}) {
    INFO(more.front());
    const RunConfig config = config_of(2, more, world_size);
    Wrapping wrapping;
    check_touched_after(wrapping, config, world_size);
    train_on_ranks(config, world_size, 2, nullptr, 0, wrapping);
  }
}

TEST_CASE("a block's activations and FLOPs shrink with the context size, but for attention's output by heads") {
  const auto plan_with = [](int64_t layers, int64_t context) {
    const RunConfig config = parse_config(
        fmt::format(R"({{"model": {{"preset": "gpt2-124m", "num_layers": {}}}, "data": {{"train": [{{"path": "x"}}]}},
                         "batch": {{"global": 2, "micro": 2}}, "precision": {{"compute": "bf16"}},
                         "parallel": {{"context": {}}}, "optimizer": {{"lr": 1e-3}},
                         "run": {{"steps": 1, "out": "x"}}}})",
                    layers, context),
        {}, "test", context);
    Target target;
    target.num_threads = 1;
    return plan_rank({config, target, context}, context - 1);
  };
  const auto activations = [&](int64_t layers, int64_t context) {
    return plan_with(layers, context).memory().arenas[MemoryClass::activations];
  };
  const int64_t whole = activations(4, 1) - activations(3, 1);
  for (const int64_t context : {2, 4}) {
    INFO("context " << context);
    constexpr int64_t output = 2 * 1024 * 768 * 2;
    CHECK(activations(4, context) - activations(3, context) == (whole + output) / context);
    CHECK(plan_with(3, context).total().model_flops * static_cast<Flops>(context) ==
          plan_with(3, 1).total().model_flops);
  }
}

}  // namespace test_context_plan
