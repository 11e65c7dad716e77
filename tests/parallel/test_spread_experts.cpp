// Experts spread over ranks: every group of ranks routes the tokens of one rank and computes its gradients, memory is
// that of the bound, and rows without room make a step void.
#include <fmt/format.h>
#include <mutex>
#include <string>
#include <vector>

#include "catch.h"
#include "experts.h"
#include "fit/choose_step.h"
#include "poisoning_backend.h"
#include "report/formulas.h"
#include "touched.h"
#include "unit/temporary_folder.h"

namespace test_spread_experts {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// A first dense layer and shared experts; and sigmoids in all layers.
const std::string softmax_moe = R"(model.moe={"experts":8,"top_k":3,"ffn_hidden_size":64,"first":1,"shared":1})";
const std::string sigmoid_moe =
    R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":32,"score":"sigmoid","renormalise":false,"scale":1.5})";

const std::vector<ExpertLayout> layouts = {
    {2, {"parallel.expert=2", "batch.micro=2"}},
    {4, {"parallel.expert=4", "parallel.zero=1", "batch.micro=1"}},
    {4, {"parallel.expert=2", "parallel.zero=3", "batch.micro=1", "memory.recompute=selective"}},
    {4, {"parallel.expert=2", "parallel.zero=2", "parallel.pipeline=2", "batch.micro=1", "memory.recompute=block"}},
    {4, {"parallel.expert=2", "parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble", "batch.micro=2"}},
    {4, {"parallel.expert=4", "parallel.tensor=2", "batch.micro=2"}},
    {4, {"parallel.expert=2", "parallel.tensor=4", "parallel.sequence=true", "batch.micro=4"}},
    {4, {"parallel.expert=2", "parallel.tensor=2", "parallel.expert_tensor=2", "parallel.zero=3", "batch.micro=1"}},
    {8,
     {"parallel.expert=2", "parallel.tensor=2", "parallel.expert_tensor=2", "parallel.sequence=true",
      "parallel.pipeline=2", "parallel.zero=1", "batch.micro=2", "memory.recompute=ffn"}},
};

Overrides with_room(Overrides overrides) {
  overrides.insert(overrides.end(), {"parallel.expert_room=8", "model.tied_head=false"});
  return overrides;
}

RunConfig config_on(const std::string& moe, const ExpertLayout& layout, const Overrides& more = {}) {
  return config_of_experts(moe, {layout.ranks, with_room(layout.overrides)}, more);
}

RunConfig config_of_one(const std::string& moe, const Overrides& more = {}) {
  return config_of_experts(moe, {1, {"model.tied_head=false"}}, more);
}

// Hooks that make every row of a router choose the first experts.
Wrapping choosing_the_first() {
  static std::vector<float> logits;
  logits.resize(4096);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = -static_cast<float>(i % 8);
  return changing<RouteTokens>([](RouteTokens& op, int64_t) { op.logits.data = logits.data(); });
}

}  // namespace

TEST_CASE("spread experts route the tokens of one rank and compute its gradients") {
  for (const std::string& moe : {softmax_moe, sigmoid_moe}) {
    const Overrides more = {"model.dropout=0.1"};
    const RunConfig config = config_of_one(moe, more);
    const GlobalState start = train_experts(config, 1, 10).outcome.state;
    const TrainedExperts one = train_experts(config, 1, 1, &start);
    for (const ExpertLayout& layout : layouts) {
      INFO(moe);
      check_as_one_rank(config_on(moe, layout, more), layout, start, one);
    }
  }
}

TEST_CASE("recomputation, stages and ZeRO leave the bits of spread experts as they are", "[long]") {
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const Overrides more = {compute, "batch.micro=2", "parallel.expert=2"};
    const auto outcome_on = [&](int64_t ranks, const Overrides& overrides) {
      return train_experts(config_on(softmax_moe, {ranks, overrides}, more), ranks, 3).outcome;
    };
    const Outcome plain = outcome_on(2, {});
    for (const auto& [ranks, override] : {std::pair{2, "memory.recompute=block"},
                                          {2, "memory.recompute=selective"},
                                          {2, "memory.recompute=ffn"},
                                          {2, "parallel.zero=1"},
                                          {4, "parallel.pipeline=2"}}) {
      INFO(compute << " " << override);
      const Outcome other = outcome_on(ranks, {override});
      CHECK(other.state == plain.state);
      CHECK(other.losses == plain.losses);
    }
    CHECK(outcome_on(4, {"parallel.zero=2"}).state == outcome_on(4, {"parallel.zero=3"}).state);
  }
}

TEST_CASE("optimizers of elements train spread experts") {
  for (const std::string type : {"adamw-8bit", "lion", "sgd", "muon"}) {
    Overrides more = {"optimizer.type=" + type, "batch.micro=2"};
    if (type == "lion" || type == "sgd") more.push_back("optimizer.eps=null");
    const Outcome one = train_experts(config_of_one(softmax_moe, more), 1, 2).outcome;
    for (const Overrides& layout : {Overrides{"parallel.expert=2", "parallel.zero=1"},
                                    {"parallel.expert=2", "parallel.tensor=2"},
                                    {"parallel.expert=2", "parallel.tensor=2", "parallel.expert_tensor=2"}}) {
      if (type != "muon" && type != "adamw-8bit" && layout.size() > 2) continue;
      const Outcome many = train_experts(config_on(softmax_moe, {4, layout}, more), 4, 2).outcome;
      INFO(type << " " << fmt::format("{}", fmt::join(layout, " ")));
      CHECK(std::abs(many.losses[1] / one.losses[1] - 1) < 1e-5);
      CHECK(many.torn.empty());
    }
  }
  const ExpertLayout pure{
      4, {"precision.compute=bf16-pure", "precision.gradients=bf16", "parallel.expert=2", "batch.micro=2"}};
  const Outcome outcome = train_experts(config_on(softmax_moe, pure), 4, 3).outcome;
  CHECK(outcome.losses[2] < outcome.losses[0]);
  CHECK(outcome.torn.empty());
}

TEST_CASE("state, weights and gradients of spread experts that are away keep their bits") {
  const Overrides everything = {"memory.offload_parameters=disk", "memory.offload_gradients=disk"};
  const std::vector<std::pair<ExpertLayout, Overrides>> cases = {
      {{2, {"parallel.expert=2"}}, {}},
      {{2, {"parallel.expert=2"}}, {"memory.offload_optimizer_share=0.5"}},
      {{2, {"parallel.expert=2", "parallel.tensor=2"}}, everything},
      {{4, {"parallel.expert=2", "parallel.zero=3", "precision.compute=bf16"}}, everything},
      {{4, {"parallel.expert=2", "parallel.zero=2"}}, {"memory.offload_gradients=disk"}},
      {{4, {"parallel.expert=2", "parallel.zero=3", "parallel.pipeline=2", "memory.recompute=block"}}, everything},
  };
  for (auto [layout, away] : cases) {
    INFO(fmt::format("{} {}", fmt::join(layout.overrides, " "), fmt::join(away, " ")));
    const TemporaryFolder folder;
    Wrapping wrapping;
    int64_t of_experts = 0;
    wrapping.after = [&](RankContext& rank) {
      if (rank.groups.rank() != 0) return;
      CHECK(rank.step.taken() == rank.plan.memory().arenas);
      of_experts = rank.plan.memory().arenas.total(MemoryPlace::disk);
    };
    const auto outcome = [&](const Wrapping& hooks) {
      return train_experts(config_on(softmax_moe, layout, {"batch.micro=1"}), layout.ranks, 3, nullptr, hooks).outcome;
    };
    const Outcome plain = outcome({});
    layout.overrides.insert(layout.overrides.end(), away.begin(), away.end());
    layout.overrides.push_back("memory.offload_optimizer=disk");
    layout.overrides.push_back("memory.disk_path=" + folder.path().string());
    const Outcome moved = outcome(wrapping);
    CHECK((moved.state == plain.state));
    CHECK(moved.losses == plain.losses);
    // Masters or moments of four experts of two or three matrices of 32 x 64 elements in each layer.
    CHECK(of_experts > 0);
  }
}

TEST_CASE("a rank whose experts get all rows touches the planned memory") {
  for (const char* recompute : {"memory.recompute=none", "memory.recompute=block"}) {
    const RunConfig config = config_on(softmax_moe, {2, {"parallel.expert=2", "batch.micro=2", recompute}});
    const Wrapping first = choosing_the_first();
    Wrapping poisoned, wrapping;
    const auto backends = poison_memory(poisoned, 2);
    std::vector<std::unique_ptr<Backend>> inner(2);
    wrapping.backend = [&](int64_t rank, Backend& backend) {
      std::unique_ptr<Backend>& own = inner[static_cast<size_t>(rank)];
      own = poisoned.backend(rank, backend);
      return first.backend(rank, *own);
    };
    std::mutex mutex;
    wrapping.after = [&](RankContext& rank) {
      if (rank.groups.rank() == 0) check_touched(rank, config, *(*backends)[0], mutex);
    };
    CHECK(train_on_ranks(config, 2, 2, nullptr, 0, wrapping).torn.empty());
  }
}

TEST_CASE("rows of experts without room make the step void, and change nothing") {
  const RunConfig config = config_of_experts(
      softmax_moe, {2, {"parallel.expert=2", "parallel.expert_room=1.5", "batch.micro=2", "model.tied_head=false"}});
  Wrapping wrapping = choosing_the_first();
  std::mutex mutex;
  wrapping.after = [&](RankContext& rank) {
    const std::unique_ptr<MicroBatchSource> source = std::make_unique<RandomBatches>(config, 0, rank.groups);
    const StepResult result = rank.step.run(1e-3, *source);
    const std::lock_guard lock(mutex);
    CHECK(result.is_void);
    CHECK(result.skipped);
    const ExpertOverflow& overflow = rank.step.expert_overflow();
    // Two micro-batches' senders with 32 rows each, whose three experts are all on the first rank.
    CHECK(overflow.rows == 2 * 32 * 3);
    CHECK(overflow.capacity == 32 * 3 * 3 / 2);
    CHECK(overflow.layer == 1);
  };
  const Outcome after = train_on_ranks(config, 2, 1, nullptr, 0, wrapping);
  CHECK(after.state == train_on_ranks(config, 2, 0, nullptr, 0, {}).state);
}

TEST_CASE("ranks with replicas of weights agree on their checksums") {
  std::vector<uint32_t> dense(4), experts(4);
  Wrapping wrapping;
  wrapping.after = [&](RankContext& rank) {
    const auto number = static_cast<size_t>(rank.groups.rank());
    dense[number] = rank.step.weights_checksum(ReplicaGroup::data);
    experts[number] = rank.step.weights_checksum(ReplicaGroup::expert_data);
  };
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    train_on_ranks(config_on(softmax_moe, {4, {"parallel.expert=2", "parallel.zero=1", "batch.micro=2", compute}}), 4,
                   1, nullptr, 0, wrapping);
    CHECK(dense == std::vector<uint32_t>(4, dense[0]));
    CHECK((experts[0] == experts[2] && experts[1] == experts[3] && experts[0] != experts[1]));
  }
}

TEST_CASE("a plan of spread experts has the model's FLOPs, and the traffic of equal loads") {
  for (const ExpertLayout& layout :
       {ExpertLayout{4, {"parallel.expert=4", "batch.micro=2"}},
        {4, {"parallel.expert=2", "parallel.tensor=2", "batch.micro=2"}},
        {4, {"parallel.expert=2", "parallel.tensor=2", "parallel.expert_tensor=2", "batch.micro=2"}}}) {
    const RunConfig config = config_on(softmax_moe, layout);
    Flops flops = 0;
    for (int64_t rank = 0; rank < layout.ranks; ++rank)
      flops += plan_rank({config, this_machine(1), layout.ranks}, rank).total().model_flops;
    CHECK(to_string(flops) == to_string(model_flops_formula(config.model, config.batch.global)));
    const StepPlan plan = plan_rank({config, this_machine(1), layout.ranks}, 0);
    const Traffic& moved = plan.traffic[static_cast<size_t>(LaneKind::expert)][static_cast<size_t>(GroupKind::expert)]
                                       [static_cast<size_t>(Operation::all_to_all_v)];
    // In forward and in backward rows go to the experts and come back, and a number with each on one of the ways.
    const int64_t layers = config.model.num_layers - 1, tensor = config.parallel.tensor;
    // Tensor ranks with whole experts send a share of the rows each.
    const int64_t shares = tensor / config.parallel.expert_tensor;
    const int64_t rows = config.batch.global * config.model.sequence_length * 3 * tensor / layout.ranks / shares;
    const int64_t elements = 4 * config.model.hidden_size + 2, others = config.parallel.expert - 1;
    CHECK(moved.calls == 6 * layers * config.batch.accumulation);
    CHECK(moved.sent_bytes == layers * rows * elements * 4 * others / config.parallel.expert);
  }
}

TEST_CASE("faults of spread experts are found", "[long]") {
  const ExpertLayout layout{4, {"parallel.expert=2", "parallel.zero=1", "batch.micro=1"}};
  const RunConfig config = config_on(softmax_moe, layout), one_rank = config_of_one(softmax_moe);
  const GlobalState start = train_experts(one_rank, 1, 10).outcome.state;
  const Outcome one = train_experts(one_rank, 1, 1, &start).outcome;
  const auto difference_with = [&](const Wrapping& wrapping) {
    return difference(make_spec(config.model), one, train_experts(config, 4, 1, &start, wrapping).outcome);
  };
  REQUIRE(difference_with({}).small());
  static std::vector<float> ones(4096, 1.0F);
  Wrapping without_copies;
  without_copies.group = [](int64_t, LaneKind lane, GroupKind group, std::unique_ptr<Communicator> made) {
    return lane == LaneKind::gradients && group == GroupKind::expert_data ? std::move(make_local_group(1)[0])
                                                                          : std::move(made);
  };
  const std::vector<std::pair<const char*, Wrapping>> faults = {
      {"weights of the senders left out",
       changing<ExpertActivationForward>([](auto& op, int64_t) { op.weights.data = ones.data(); })},
      {"gradients of copies not summed", without_copies},
      {"gradients of a micro-batch lost on one rank", changing<GroupedLinearBackwardWeight>([](auto& op, int64_t rank) {
         if (rank == 1) op.accumulate = false;
       })},
      {"no gradient through the router's input on one rank", changing<CombineRows>([](auto& op, int64_t rank) {
         if (rank == 2) op.router = {};
       })},
  };
  for (const auto& [name, wrapping] : faults) {
    INFO(name);
    CHECK_FALSE(difference_with(wrapping).small());
  }
}

}  // namespace test_spread_experts
