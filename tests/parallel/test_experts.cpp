// Mixtures of experts: every layout routes the tokens of one rank and computes its gradients, equal experts are one
// FFN, and faults that are easily made are found.
#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "experts.h"
#include "fit/choose_step.h"
#include "report/formulas.h"
#include "touched.h"

namespace test_experts {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// A first dense layer and shared experts; and sigmoids in all layers.
const std::string softmax_moe = R"(model.moe={"experts":6,"top_k":2,"ffn_hidden_size":64,"first":1,"shared":1})";
const std::string sigmoid_moe =
    R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":32,"score":"sigmoid","renormalise":false,"scale":1.5})";

using Layout = ExpertLayout;

const std::vector<Layout> layouts = {
    {1, {"batch.micro=1"}},
    {2, {"parallel.tensor=2", "batch.micro=2"}},
    {4, {"parallel.tensor=4", "parallel.sequence=true", "batch.micro=2", "memory.recompute=block"}},
    {2, {"parallel.zero=1", "batch.micro=2", "memory.recompute=selective"}},
    {4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.zero=3", "batch.micro=2"}},
    {4, {"parallel.pipeline=2", "parallel.zero=2", "batch.micro=1"}},
    {3, {"parallel.pipeline=3", "parallel.pipeline_schedule=zero-bubble", "batch.micro=2", "memory.recompute=ffn"}},
};

}  // namespace

TEST_CASE("layouts route the tokens of one rank and compute its gradients") {
  for (const std::string& moe : {softmax_moe, sigmoid_moe}) {
    const Overrides more = {"model.dropout=0.1", "model.tied_head=false"};
    const RunConfig config = config_of_experts(moe, {1, {}}, more);
    const GlobalState start = train_experts(config, 1, 10).outcome.state;
    const TrainedExperts one = train_experts(config, 1, 1, &start);
    for (const Layout& layout : layouts) {
      const TrainedExperts many = train_experts(config_of_experts(moe, layout, more), layout.ranks, 1, &start);
      const Difference d = difference(make_spec(config.model), one.outcome, many.outcome);
      INFO(fmt::format("{} {}: moment {} of {}, loss {}", moe, fmt::join(layout.overrides, " "), d.first_moment,
                       d.moment_of, d.loss));
      CHECK(d.small());
      check_routing(config.model.moe, many.routing, one.routing);
    }
  }
}

TEST_CASE("recomputation, stages and ZeRO leave the bits of experts as they are") {
  for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const Overrides more = {compute, "model.tied_head=false", "batch.micro=2"};
    const TrainedExperts one = train_experts(config_of_experts(softmax_moe, {1, {}}, more), 1, 3);
    for (const Layout& layout : {Layout{1, {"memory.recompute=block"}},
                                 {1, {"memory.recompute=selective"}},
                                 {1, {"memory.recompute=ffn"}},
                                 {3, {"parallel.pipeline=3", "parallel.pipeline_schedule=zero-bubble"}}}) {
      INFO(fmt::format("{} {}", compute, fmt::join(layout.overrides, " ")));
      const TrainedExperts other = train_experts(config_of_experts(softmax_moe, layout, more), layout.ranks, 3);
      CHECK(other.outcome.state == one.outcome.state);
      CHECK(other.outcome.losses == one.outcome.losses);
    }
    const TrainedExperts zero0 = train_experts(config_of_experts(softmax_moe, {2, {"parallel.zero=0"}}, more), 2, 3);
    CHECK(train_experts(config_of_experts(softmax_moe, {2, {"parallel.zero=1"}}, more), 2, 3).outcome.state ==
          zero0.outcome.state);
  }
}

TEST_CASE("optimizers train experts on any cut of their units") {
  for (const char* type : {"muon", "adamw-8bit", "adafactor", "lamb"}) {
    const Overrides more = {fmt::format("optimizer.type={}", type), "optimizer.eps=1e-3", "batch.micro=2"};
    const TrainedExperts one = train_experts(config_of_experts(softmax_moe, {1, {}}, more), 1, 2);
    const TrainedExperts many = train_experts(config_of_experts(softmax_moe, {2, {"parallel.zero=1"}}, more), 2, 2);
    INFO(type);
    CHECK(std::abs(many.outcome.losses[1] / one.outcome.losses[1] - 1) < 1e-5);
    CHECK(many.outcome.torn.empty());
  }
  const TrainedExperts pure =
      train_experts(config_of_experts(softmax_moe, {2, {"precision.compute=bf16-pure", "parallel.zero=3"}}), 2, 3);
  CHECK(pure.outcome.losses[2] < pure.outcome.losses[0]);
}

namespace {

// A dense model's weights as those of a mixture whose experts are all the dense FFN.
GlobalState with_equal_experts(const GlobalState& dense, const RunConfig& mixture, const GlobalState& routers) {
  GlobalState state;
  for (const TensorSpec& tensor : make_spec(mixture.model).tensors) {
    const std::string name = "weight/" + tensor.name;
    const size_t expert = name.find(".experts.");
    if (name.find("router") != std::string::npos) {
      state[name] = routers.at(name);
    } else if (expert == std::string::npos) {
      state[name] = dense.at(name);
    } else {
      const std::string linear = name.substr(name.find('.', expert + 9));
      state[name] = dense.at(name.substr(0, expert) + ".ffn" + linear);
    }
  }
  return state;
}

}  // namespace

TEST_CASE("equal experts are the dense FFN, one expert too") {
  const RunConfig dense = config_of_experts("model.moe={}", {1, {}});
  const GlobalState start = train_experts(dense, 1, 10).outcome.state;
  const Outcome expected = train_experts(dense, 1, 1, &start).outcome;
  for (const auto& [experts, more] :
       {std::pair{1, R"("top_k":1,"renormalise":false,"aux_loss":0)"}, {5, R"("top_k":2,"aux_loss":0)"}}) {
    const std::string moe = fmt::format(R"(model.moe={{"experts":{},{},"z_loss":0}})", experts, more);
    const RunConfig config = config_of_experts(moe, {1, {}});
    const GlobalState equal = with_equal_experts(start, config, train_experts(config, 1, 1).outcome.state);
    const Outcome outcome = train_experts(config, 1, 1, &equal).outcome;
    CHECK(std::abs(outcome.losses[0] / expected.losses[0] - 1) < 1e-6);
    for (const std::string linear : {"in", "out"}) {
      const std::vector<float>& whole = expected.state.at("exp_avg/blocks.1.ffn." + linear + ".weight");
      std::vector<float> sum(whole.size());
      for (int expert = 0; expert < experts; ++expert) {
        const auto& part = outcome.state.at(fmt::format("exp_avg/blocks.1.experts.{}.{}.weight", expert, linear));
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      CHECK(relative_distance(sum, whole) < 1e-6);
    }
  }
}

TEST_CASE("model FLOPs of experts follow the formula, and a run touches the planned memory") {
  for (const std::string& moe : {softmax_moe, sigmoid_moe}) {
    for (const Layout& layout : {Layout{1, {}}, Layout{2, {"parallel.tensor=2", "batch.micro=2"}}}) {
      const RunConfig config = config_of_experts(moe, layout);
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

TEST_CASE("faults of experts are found") {
  const Layout layout{2, {"parallel.tensor=2", "batch.micro=2"}};
  const RunConfig config = config_of_experts(softmax_moe, layout), one_rank = config_of_experts(softmax_moe, {1, {}});
  const GlobalState start = train_experts(one_rank, 1, 10).outcome.state;
  const Outcome one = train_experts(one_rank, 1, 1, &start).outcome;
  const auto difference_with = [&](const Wrapping& wrapping) {
    return difference(make_spec(config.model), one, train_experts(config, 2, 1, &start, wrapping).outcome);
  };
  REQUIRE(difference_with({}).small());
  static std::vector<float> ones(1024, 1.0F), zeros(1024, 0.0F);
  const std::vector<std::pair<const char*, Wrapping>> faults = {
      {"weights left out in backward",
       changing<ExpertActivationBackward>([](auto& op, int64_t) { op.weights.data = ones.data(); })},
      {"routers without gradients of weights",
       changing<RouteTokensBackward>([](auto& op, int64_t) { op.d_weights.data = zeros.data(); })},
      {"balance loss on every tensor rank",
       changing<RouteTokensBackward>([](auto& op, int64_t) { op.balance_factor = 0.01 / 8; })},
      {"balance loss of a micro-batch, not of the step",
       changing<RouteTokensBackward>([](auto& op, int64_t) { op.balance_factor *= 4; })},
      {"no balance loss", changing<RouteTokensBackward>([](auto& op, int64_t) { op.balance_factor = 0; })},
      {"no z-loss", changing<RouteTokensBackward>([](auto& op, int64_t) { op.z_factor = 0; })},
      {"weights not divided by their sum in backward",
       changing<RouteTokensBackward>([](auto& op, int64_t) { op.rule.renormalise = false; })},
      {"no gradient through the router's input", changing<CombineRows>([](auto& op, int64_t) { op.router = {}; })},
      {"shared experts on one rank only",
       changing<CombineRows>([](auto& op, int64_t rank) { op.shared = rank == 0 ? op.shared : Matrix{}; })},
      {"gradients of a micro-batch lost",
       changing<GroupedLinearBackwardWeight>([](auto& op, int64_t) { op.accumulate = false; })},
  };
  for (const auto& [name, wrapping] : faults) {
    INFO(name);
    CHECK_FALSE(difference_with(wrapping).small());
  }
}

}  // namespace test_experts
