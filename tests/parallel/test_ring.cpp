// Ranks that share sequences by ring attention: results of one rank, and the same bits where layouts promise them.
#include <string>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "same_outcomes.h"

namespace test_ring {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

RunConfig config_of(Family family, int64_t world_size, const Overrides& model, const Overrides& layout) {
  Overrides overrides = {"model.num_heads=4", "model.hidden_size=40", "model.sequence_length=20", "optimizer.eps=1e-3",
                         "model.dropout=0.1"};
  overrides.insert(overrides.end(), model.begin(), model.end());
  if (world_size > 1) overrides.emplace_back("parallel.context_method=ring");
  overrides.insert(overrides.end(), layout.begin(), layout.end());
  return small_config(family, overrides, world_size);
}

struct Layout {
  int64_t world_size;
  Overrides overrides;
};

// Checks that the ranks of each layout compute one rank's first moments, from a state after ten steps.
void compare_with_one_rank(Family family, const Overrides& model, const std::vector<Layout>& layouts) {
  const RunConfig alone = config_of(family, 1, model, {});
  const GlobalState start = train_on_ranks(alone, 1, 10).state;
  const Outcome one = train_on_ranks(alone, 1, 1, &start, 1000);
  for (const Layout& layout : layouts) {
    const RunConfig config = config_of(family, layout.world_size, model, layout.overrides);
    const Difference d =
        difference(make_spec(config.model), one, train_on_ranks(config, layout.world_size, 1, &start, 1000));
    INFO(layout.overrides.front() << ", " << layout.world_size << " ranks, moment " << d.first_moment << " of "
                                  << d.moment_of << ", loss " << d.loss << ", norm " << d.norm);
    CHECK(d.small());
  }
}

}  // namespace

TEST_CASE("first moments of ranks that pass keys and values on, with documents and a band") {
  const std::vector<Layout> layouts = {
      {2, {"parallel.context=2", "batch.micro=2", "memory.recompute=block"}},
      {5, {"parallel.context=5", "batch.micro=1", "parallel.zero=3"}},
      {4,
       {"parallel.context=2", "parallel.tensor=2", "batch.micro=2", "parallel.sequence=true",
        "memory.recompute=selective"}},
      {4, {"parallel.context=2", "parallel.pipeline=2", "batch.micro=1", "memory.offload_activations=all"}},
      {4, {"parallel.context=2", "batch.micro=1", "parallel.zero=2", "memory.recompute=selective"}}};
  compare_with_one_rank(
      Family::gpt2,
      {"data.mask_documents=true", R"(model.attention_pattern=["dense","band:3"])", "model.attention_softcap=0.5"},
      layouts);
  compare_with_one_rank(Family::llama, {"data.mask_documents=true", "model.num_kv_heads=1"}, {layouts[1], layouts[3]});
}

TEST_CASE("ranks that pass keys and values on give the same bits with every schedule, recomputation and ZeRO stage",
          "[long]") {
  const auto run = [](int64_t world_size, const Overrides& layout) {
    Overrides overrides = {"parallel.context=2", "batch.micro=1", "precision.compute=bf16"};
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    return train_on_ranks(config_of(Family::llama, world_size, {"model.num_layers=4"}, overrides), world_size, 2);
  };
  const Outcome zero0 = run(2, {});
  require_same(zero0, run(2, {"parallel.zero=1", "memory.recompute=block"}));
  require_same(zero0, run(4, {"parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble"}));
  require_same(zero0, run(4, {"parallel.pipeline=2", "parallel.pipeline_schedule=interleaved", "parallel.zero=1"}));
  require_same(run(2, {"parallel.zero=2"}),
               run(2, {"parallel.zero=3", "memory.recompute=every_nth", "memory.recompute_interval=2"}));
}

}  // namespace test_ring
