// Biases and losses that balance experts by the loads of all ranks, groups of experts, capacities, gates and jitter.
// Any layout gives the results of one rank, unless a key says otherwise.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.h"
#include "experts.h"
#include "fit/choose_step.h"
#include "report/formulas.h"
#include "touched.h"

namespace test_balanced_experts {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr double rate = 0.02;

// Loads of the step before, in groups, with gated shared experts; and a capacity.
const std::string grouped = fmt::format(
    R"(model.moe={{"experts":8,"top_k":4,"groups":4,"group_top_k":2,"ffn_hidden_size":64,"first":1,"shared":1,)"
    R"("shared_gate":"sigmoid","router_bias_rate":{},"aux_loss":0.1,"aux_over":"global","jitter":0.1}})",
    rate);
const std::string bounded =
    R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":32,"score":"sigmoid","capacity":1.1,"router_bias_rate":0.01})";

const std::vector<ExpertLayout> layouts = {
    {1, {"batch.micro=1"}},
    {4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.zero=3", "batch.micro=2"}},
    {3, {"parallel.pipeline=3", "parallel.pipeline_schedule=zero-bubble", "batch.micro=2"}},
    {4, {"parallel.expert=4", "parallel.expert_room=8", "parallel.zero=1", "batch.micro=1", "memory.recompute=block"}},
    {4, {"parallel.expert=2", "parallel.expert_room=8", "parallel.tensor=2", "batch.micro=2"}},
};

RunConfig config_of(const std::string& moe, const ExpertLayout& layout, const Overrides& more = {}) {
  Overrides all = {"model.tied_head=false"};
  all.insert(all.end(), more.begin(), more.end());
  return config_of_experts(moe, layout, all);
}

// The sums of one layer with experts.
std::vector<double> of_layer(const MoeConfig& moe, const std::vector<double>& routing, int64_t number) {
  const auto count = static_cast<size_t>(num_routing_sums(moe.experts));
  const auto first = routing.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(number) * count);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

std::string with(std::string moe, const std::string& from, const std::string& to) {
  const size_t at = moe.find(from);
  REQUIRE(at != std::string::npos);
  return moe.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("layouts balance, limit and drop as one rank does") {
  for (const std::string& moe : {grouped, bounded}) {
    const RunConfig config = config_of(moe, {1, {}});
    const GlobalState start = train_experts(config, 1, 10).outcome.state;
    const TrainedExperts one = train_experts(config, 1, 1, &start);
    if (moe == bounded) CHECK(of_layer(config.model.moe, one.routing, 0).back() > 0);
    for (const ExpertLayout& layout : layouts) {
      INFO(moe);
      const TrainedExperts many = check_as_one_rank(config_of(moe, layout), layout, start, one);
      for (const char* name : {"weight/blocks.1.router.bias", "weight/blocks.1.router.excess"}) {
        if (one.outcome.state.contains(name)) CHECK(many.outcome.state.at(name) == one.outcome.state.at(name));
      }
    }
  }
}

TEST_CASE("biases and loads follow the tokens of each expert, with any optimizer and precision") {
  for (const char* type : {"adamw", "adamw-8bit", "sgd", "lion", "lamb", "lars", "muon", "adafactor"}) {
    Overrides more = {fmt::format("optimizer.type={}", type), "batch.micro=2", "parallel.zero=1",
                      "precision.compute=bf16"};
    if (type == std::string("sgd") || type == std::string("lion") || type == std::string("lars"))
      more.push_back("optimizer.eps=null");
    const RunConfig config = config_of(grouped, {2, {}}, more);
    const TrainedExperts trained = train_experts(config, 2, 1);
    INFO(type);
    for (int64_t layer = 1; layer < config.model.num_layers; ++layer) {
      const std::vector<double> sums = of_layer(config.model.moe, trained.routing, layer - 1);
      const double mean = static_cast<double>(config.batch.global * config.model.sequence_length) * 4 / 8;
      const auto& bias = trained.outcome.state.at(fmt::format("weight/blocks.{}.router.bias", layer));
      const auto& excess = trained.outcome.state.at(fmt::format("weight/blocks.{}.router.excess", layer));
      for (size_t e = 0; e < 8; ++e) {
        CHECK(bias[e] == static_cast<float>(sums[e] < mean ? rate : sums[e] > mean ? -rate : 0));
        CHECK(excess[e] == static_cast<float>(sums[e] / mean - 1));
      }
    }
    CHECK(trained.outcome.torn.empty());
  }
}

TEST_CASE("biases even out loads without a loss") {
  const std::string without = R"(model.moe={"experts":8,"top_k":2,"ffn_hidden_size":32,"aux_loss":0})";
  const std::string balanced = with(without, R"("aux_loss":0)", R"("aux_loss":0,"router_bias_rate":0.0005)");
  const auto most = [](const std::string& moe) {
    const RunConfig config = config_of(moe, {1, {}});
    const TrainedExperts trained = train_experts(config, 1, 25);
    const std::vector<double> sums = of_layer(config.model.moe, trained.routing, 1);
    return *std::max_element(sums.begin(), sums.begin() + 8);
  };
  CHECK(most(balanced) < most(without));
}

TEST_CASE("recomputation, stages and ZeRO leave the bits of balanced experts as they are") {
  const Overrides more = {"precision.compute=bf16", "batch.micro=2"};
  const auto outcome_of = [&](const ExpertLayout& layout) {
    return train_experts(config_of(grouped, layout, more), layout.ranks, 3).outcome;
  };
  const Outcome one = outcome_of({1, {}});
  for (const ExpertLayout& layout : {ExpertLayout{1, {"memory.recompute=block"}},
                                     {1, {"memory.recompute=selective"}},
                                     {1, {"memory.recompute=ffn"}},
                                     {3, {"parallel.pipeline=3"}}}) {
    INFO(fmt::format("{}", fmt::join(layout.overrides, " ")));
    const Outcome other = outcome_of(layout);
    CHECK(other.state == one.state);
    CHECK(other.losses == one.losses);
  }
  CHECK(outcome_of({2, {"parallel.zero=1"}}).state == outcome_of({2, {"parallel.zero=0"}}).state);
}

TEST_CASE("micro-batches of one sequence balance and drop as sequences do, larger ones do not") {
  for (const auto& [plain, from, to] : {std::tuple{with(bounded, R"("router_bias_rate":0.01)", R"("aux_loss":0.1)"),
                                                   R"("aux_loss":0.1)", R"("aux_loss":0.1,"aux_over":"micro-batch")"},
                                        {bounded, R"("capacity":1.1)", R"("capacity":1.1,"capacity_over":"rank")"},
                                        {bounded, R"("capacity":1.1)", R"("capacity":1.1,"drop":"position")"}}) {
    const std::string other = with(plain, from, to);
    const bool by_position = other.find("position") != std::string::npos;
    for (const char* micro : {"batch.micro=1", "batch.micro=4"}) {
      const Outcome a = train_experts(config_of(plain, {1, {micro}}), 1, 2).outcome;
      const Outcome b = train_experts(config_of(other, {1, {micro}}), 1, 2).outcome;
      INFO(other << " " << micro);
      CHECK((a.state == b.state) == (micro == std::string("batch.micro=1") && !by_position));
    }
  }
}

TEST_CASE("rows of experts without room are dropped and counted where the config says so") {
  const std::string moe = R"(model.moe={"experts":8,"top_k":3,"ffn_hidden_size":64,"first":1,"shared":1})";
  const RunConfig config = config_of(
      moe, {2, {"parallel.expert=2", "parallel.expert_room=1.5", "parallel.expert_overflow=drop", "batch.micro=2"}});
  static std::vector<float> logits(4096);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = -static_cast<float>(i % 8);
  const Wrapping first = changing<RouteTokens>([](RouteTokens& op, int64_t) { op.logits.data = logits.data(); });
  const TrainedExperts trained = train_experts(config, 2, 1, nullptr, first);
  // In each of two micro-batches 192 rows come to the first rank, which has room for 144.
  for (int64_t layer = 0; layer + 1 < config.model.num_layers; ++layer)
    CHECK(of_layer(config.model.moe, trained.routing, layer).back() == 2 * (192 - 144));
  CHECK(std::isfinite(trained.outcome.losses.at(0)));
  CHECK(trained.outcome.torn.empty());
}

TEST_CASE("model FLOPs of gated experts follow the formula, and balanced ones touch the planned memory", "[long]") {
  for (const std::string& moe : {grouped, bounded}) {
    // In larger micro-batches logits would take the most memory, of which the padding behind the vocabulary is not
    // written.
    for (const ExpertLayout& layout : {ExpertLayout{1, {"batch.micro=1"}},
                                       {1, {"batch.micro=1", "memory.recompute=ffn"}},
                                       {2, {"parallel.tensor=2", "batch.micro=2", "memory.recompute=selective"}}}) {
      const RunConfig config = config_of(moe, layout);
      Flops flops = 0;
      for (int64_t rank = 0; rank < layout.ranks; ++rank)
        flops += plan_rank({config, this_machine(1), layout.ranks}, rank).total().model_flops;
      CHECK(to_string(flops) == to_string(model_flops_formula(config.model, config.batch.global)));
      Wrapping checking;
      check_touched_after(checking, config, layout.ranks);
      CHECK(train_on_ranks(config, layout.ranks, 2, nullptr, 0, checking).torn.empty());
    }
  }
}

TEST_CASE("faults of balanced experts are found", "[long]") {
  const ExpertLayout layout{2, {"parallel.tensor=2", "batch.micro=2"}};
  static std::vector<float> zeros(4096, 0.0F), ones(4096, 1.0F);
  const auto check = [&](const std::string& moe, const std::vector<std::pair<const char*, Wrapping>>& faults) {
    const RunConfig config = config_of(moe, layout), one_rank = config_of(moe, {1, {}});
    const GlobalState start = train_experts(one_rank, 1, 10).outcome.state;
    const TrainedExperts one = train_experts(one_rank, 1, 1, &start);
    for (const auto& [name, wrapping] : faults) {
      INFO(name);
      const TrainedExperts wrong = train_experts(config, 2, 1, &start, wrapping);
      const bool same_biases =
          wrong.outcome.state.at("weight/blocks.1.router.bias") == one.outcome.state.at("weight/blocks.1.router.bias");
      CHECK_FALSE((difference(make_spec(config.model), one.outcome, wrong.outcome).small() && same_biases));
    }
  };
  check(grouped,
        {{"no bias in the choice", changing<RouteTokens>([](auto& op, int64_t) { op.bias.data = zeros.data(); })},
         {"all groups", changing<RouteTokens>([](auto& op, int64_t) { op.rule.groups = op.rule.group_top_k = 1; })},
         {"a loss by the step's own loads", changing<RouteTokensBackward>([](auto& op, int64_t) { op.excess = {}; })},
         {"other jitter in backward", changing<JitterRows>([](auto& op, int64_t) {
            if (op.x.data == op.y.data) op.dropout.key.k0 ^= 1;
          })},
         {"jitter of its own on each tensor rank",
          changing<JitterRows>([](auto& op, int64_t rank) { op.dropout.key.k0 += static_cast<uint32_t>(rank); })},
         {"an open gate", changing<ExpertActivationForward>([](auto& op, int64_t) {
            if (op.offsets.cols == 2) op.weights.data = ones.data();
          })},
         {"a gate without a gradient",
          changing<GateRowsBackward>([](auto& op, int64_t) { op.d_weights.data = zeros.data(); })},
         {"biases that go on", changing<BalanceRouters>([](auto& op, int64_t) { op.rate = 2 * rate; })}});
  check(bounded, {{"a capacity of one more", changing<RouteTokens>([](auto& op, int64_t) { op.rule.capacity += 1; })},
                  {"the last tokens dropped",
                   changing<RouteTokens>([](auto& op, int64_t) { op.rule.drop = DropRule::position; })}});
}

}  // namespace test_balanced_experts
