// Experts beside ranks that share sequences: every group of ranks routes the tokens of one rank, balances the loads of
// whole sequences and computes its gradients.
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "experts.h"
#include "fit/choose_step.h"
#include "report/formulas.h"
#include "touched.h"

namespace test_context_experts {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// A strong balance loss of each sequence beside a z-loss, and of a micro-batch of two.
const std::string by_sequence =
    R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":64,"first":1,"shared":1,"aux_loss":0.1,"z_loss":0.01,)"
    R"("jitter":0.1})";
const std::string by_micro_batch =
    R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":32,"score":"sigmoid","aux_loss":0.1,)"
    R"("aux_over":"micro-batch","router_bias_rate":0.01})";

const std::vector<ExpertLayout> layouts = {
    {2, {"parallel.context=2", "parallel.context_method=heads", "memory.recompute=block"}},
    {2, {"parallel.context=2", "parallel.context_method=ring", "parallel.expert=2", "parallel.expert_room=8"}},
    {4,
     {"parallel.context=4", "parallel.context_method=ring", "parallel.zero=3", "parallel.expert=2",
      "parallel.expert_room=8", "memory.recompute=selective"}},
    {8,
     {"parallel.context=2", "parallel.context_method=heads", "parallel.tensor=2", "parallel.sequence=true",
      "parallel.pipeline=2", "parallel.expert=4", "parallel.expert_room=8", "memory.recompute=ffn"}},
    {4,
     {"parallel.context=2", "parallel.context_method=ring", "parallel.tensor=2", "parallel.expert=2",
      "parallel.expert_tensor=2", "parallel.expert_room=8", "parallel.zero=1"}},
};

RunConfig config_of(const std::string& moe, const ExpertLayout& layout) {
  return config_of_experts(moe, layout,
                           {"model.tied_head=false", "model.dropout=0.1", "data.mask_documents=true", "batch.micro=2"});
}

}  // namespace

TEST_CASE("ranks that share sequences route tokens and balance experts as one rank does") {
  for (const std::string& moe : {by_sequence, by_micro_batch}) {
    const RunConfig config = config_of(moe, {1, {}});
    const GlobalState start = train_experts(config, 1, 10).outcome.state;
    const TrainedExperts one = train_experts(config, 1, 1, &start);
    for (const ExpertLayout& layout : layouts) {
      INFO(moe);
      check_as_one_rank(config_of(moe, layout), layout, start, one);
    }
  }
}

TEST_CASE("recomputation, stages and ZeRO leave the bits of experts beside shared sequences as they are", "[long]") {
  const auto outcome_of = [](int64_t ranks, const Overrides& overrides) {
    Overrides all = {"parallel.context=2", "parallel.context_method=ring", "precision.compute=bf16"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return train_experts(config_of(by_sequence, {ranks, all}), ranks, 3).outcome;
  };
  const Outcome plain = outcome_of(2, {});
  for (const auto& [ranks, override] :
       {std::pair{2, "memory.recompute=block"}, {2, "parallel.zero=1"}, {4, "parallel.pipeline=2"}}) {
    INFO(override);
    const Outcome other = outcome_of(ranks, {override});
    CHECK((other.state == plain.state));
    CHECK(other.losses == plain.losses);
  }
}

TEST_CASE("experts beside shared sequences have the planned memory, traffic and FLOPs") {
  const ExpertLayout layout{2, {"parallel.context=2", "parallel.context_method=ring"}};
  const RunConfig config = config_of(by_sequence, layout);
  Flops flops = 0;
  for (int64_t rank = 0; rank < layout.ranks; ++rank)
    flops += plan_rank({config, this_machine(1), layout.ranks}, rank).total().model_flops;
  CHECK(to_string(flops) == to_string(model_flops_formula(config.model, config.batch.global)));
  const StepPlan plan = plan_rank({config, this_machine(1), layout.ranks}, 0);
  const Traffic& summed = plan.traffic[static_cast<size_t>(LaneKind::context)][static_cast<size_t>(GroupKind::context)]
                                      [static_cast<size_t>(Operation::all_reduce)];
  // The loads of each sequence and layer with experts, in f32.
  CHECK(summed.calls == (config.model.num_layers - 1) * config.batch.accumulation);
  Wrapping checking;
  check_touched_after(checking, config, layout.ranks);
  CHECK(train_on_ranks(config, layout.ranks, 2, nullptr, 0, checking).torn.empty());
}

TEST_CASE("faults of experts beside shared sequences are found") {
  const ExpertLayout layout{2, {"parallel.context=2", "parallel.context_method=ring"}};
  const RunConfig config = config_of(by_sequence, layout), one_rank = config_of(by_sequence, {1, {}});
  const GlobalState start = train_experts(one_rank, 1, 10).outcome.state;
  const Outcome one = train_experts(one_rank, 1, 1, &start).outcome;
  for (const auto& [name, wrapping] :
       {std::pair{"loads of the own rows", changing<RouteTokensBackward>([](auto&op, int64_t) {
                    op.loads = {};
                    op.rule.run_ranks = 1;
                    op.rule.balanced_rows /= 2;
                  })},
        {"another jitter on the second rank", changing<JitterRows>([](auto&op, int64_t rank) {
           if (rank == 1) op.token_rows = TokenRows::part(16, {2, 0, true});
         })}}) {
    INFO(name);
    CHECK_FALSE(
        difference(make_spec(config.model), one, train_experts(config, 2, 1, &start, wrapping).outcome).small());
  }
}

}  // namespace test_context_experts
