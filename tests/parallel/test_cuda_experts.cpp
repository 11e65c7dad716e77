// Mixtures of experts on CUDA ranks, on one shared device or on the host harness: the routing of one CPU rank and its
// gradients, in every layout.
#include <cmath>
#include <fmt/format.h>
#include <mutex>
#include <string>
#include <vector>

#include "catch.h"
#include "experts.h"
#include "on_cuda.h"
#include "same_outcomes.h"
#include "some_cases.h"

namespace test_cuda_experts {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Any number of rows, with gated shared experts behind a dense layer; and groups, biases, jitter and a capacity.
const std::string dropless =
    R"(model.moe={"experts":8,"top_k":3,"ffn_hidden_size":32,"first":1,"shared":1,"shared_gate":"sigmoid",)"
    R"("aux_loss":0.1,"z_loss":0.01})";
const std::string bounded =
    R"(model.moe={"experts":8,"top_k":4,"groups":4,"group_top_k":2,"ffn_hidden_size":32,"score":"sigmoid",)"
    R"("capacity":1.1,"router_bias_rate":0.01,"aux_loss":0.1,"aux_over":"global","jitter":0.01})";

std::vector<ExpertLayout> layouts() {
  std::vector<ExpertLayout> all = {
      {2, {"parallel.tensor=2", "batch.micro=2"}},
      {2, {"parallel.pipeline=2", "batch.micro=4"}},
      {4, {"parallel.expert=2", "parallel.pipeline=2", "parallel.zero=3", "batch.micro=2", "memory.recompute=block"}},
      {4, {"parallel.expert=4", "parallel.tensor=2", "parallel.sequence=true", "batch.micro=4"}},
  };
  if (some_cases()) return all;
  const std::vector<ExpertLayout> more = {
      {1, {"batch.micro=1", "memory.recompute=selective"}},
      {2, {"parallel.zero=1", "batch.micro=2", "memory.recompute=ffn"}},
      {2, {"parallel.zero=3", "batch.micro=4", "memory.recompute=block"}},
      {2, {"parallel.expert=2", "batch.micro=2"}},
      {4, {"parallel.expert=2", "parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble", "batch.micro=2"}},
      {4, {"parallel.expert=2", "parallel.tensor=2", "parallel.expert_tensor=2", "parallel.zero=1", "batch.micro=2"}},
  };
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

RunConfig config_on(const std::string& moe, const ExpertLayout& layout, const Overrides& more = {}) {
  Overrides all = {"model.tied_head=false", "model.num_layers=2"};
  all.insert(all.end(), more.begin(), more.end());
  for (const std::string& key : layout.overrides) {
    if (key.starts_with("parallel.expert=")) all.emplace_back("parallel.expert_room=8");
  }
  return config_of_experts(moe, layout, all);
}

}  // namespace

TEST_CASE("experts on CUDA ranks get the tokens that they get on one CPU rank, and its gradients") {
  require_device();
  for (const std::string& moe : {dropless, bounded}) {
    const Overrides more = moe == dropless ? Overrides{"model.dropout=0.1"} : Overrides{"data.mask_documents=true"};
    const RunConfig config = config_on(moe, {1, {}}, more);
    const GlobalState start = train_experts(config, 1, 10).outcome.state;
    const TrainedExperts one = train_experts(config, 1, 1, &start);
    if (moe == bounded) CHECK(one.routing.back() > 0);  // dropped
    for (const ExpertLayout& layout : layouts()) {
      INFO(moe);
      const TrainedExperts many = check_as_one_rank(config_on(moe, layout, more), layout, start, one, on_cuda);
      for (const char* name : {"weight/blocks.1.router.bias", "weight/blocks.1.router.excess"}) {
        if (one.outcome.state.contains(name)) CHECK(many.outcome.state.at(name) == one.outcome.state.at(name));
      }
    }
  }
}

TEST_CASE("recomputation, stages and ZeRO leave the bits of experts on CUDA as they are") {
  require_device();
  const Overrides more = {"precision.compute=bf16", "batch.global=4", "batch.micro=1"};
  const int steps = some_cases() ? 1 : 3;
  const auto outcome_on = [&](int64_t ranks, const Overrides& overrides) {
    return train_experts(config_on(bounded, {ranks, overrides}, more), ranks, steps, nullptr, on_cuda).outcome;
  };
  const Outcome own = outcome_on(1, {});
  require_same(own, outcome_on(1, {"memory.recompute=block"}));
  CHECK(std::isfinite(own.norms.back()));
  const Outcome spread = outcome_on(2, {"parallel.expert=2"});
  require_same(spread, outcome_on(2, {"parallel.expert=2", "memory.recompute=block"}));
  if (some_cases()) return;
  require_bits_of(own, outcome_on(2, {"parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble"}));
  require_bits_of(spread, outcome_on(4, {"parallel.expert=2", "parallel.pipeline=2"}));
  require_same(outcome_on(4, {"parallel.expert=2", "parallel.zero=2"}),
               outcome_on(4, {"parallel.expert=2", "parallel.zero=3"}));
}

TEST_CASE("rows of experts without room make the step of CUDA ranks void, or are dropped as on the CPU") {
  require_device();
  const ExpertLayout layout{2, {"parallel.expert=2", "batch.micro=2"}};
  const auto run = [&](const char* overflow, Wrapping wrapping, ExpertOverflow& found) {
    RunConfig config = config_on(dropless, layout, {fmt::format("parallel.expert_overflow={}", overflow)});
    config.parallel.expert_room = 1;
    std::mutex mutex;
    wrapping.after = [&](RankContext& rank) {
      const std::lock_guard lock(mutex);
      found = rank.step.expert_overflow();
    };
    return train_experts(config, layout.ranks, 1, nullptr, wrapping);
  };
  ExpertOverflow on_device, on_host;
  const TrainedExperts stopped = run("stop", on_cuda, on_device);
  run("stop", {}, on_host);
  CHECK(on_device.rows > on_device.capacity);
  CHECK(on_device.rows == on_host.rows);
  CHECK(on_device.layer == on_host.layer);
  const RunConfig config = config_on(dropless, layout);
  CHECK(stopped.outcome.state == train_experts(config, layout.ranks, 0, nullptr, on_cuda).outcome.state);
  const TrainedExperts dropped = run("drop", on_cuda, on_device), expected = run("drop", {}, on_host);
  CHECK(on_device.rows == 0);
  CHECK(expected.routing.back() > 0);
  check_routing(config.model.moe, dropped.routing, expected.routing);
}

}  // namespace test_cuda_experts
