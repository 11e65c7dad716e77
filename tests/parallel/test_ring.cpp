// Ranks that share sequences by ring attention: results of one rank, and the same bits where layouts promise them.
#include <string>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "same_outcomes.h"
#include "shared_sequences.h"

namespace test_ring {

using namespace gptrain;
using namespace gptrain::testing;

TEST_CASE("first moments of ranks that pass keys and values on, with documents and a band") {
  std::vector<SharedLayout> layouts = {
      {2, {"parallel.context=2", "batch.micro=2", "memory.recompute=block"}},
      {5, {"parallel.context=5", "batch.micro=1", "parallel.zero=3"}},
      {4,
       {"parallel.context=2", "parallel.tensor=2", "batch.micro=2", "parallel.sequence=true",
        "memory.recompute=selective"}},
      {4, {"parallel.context=2", "parallel.pipeline=2", "batch.micro=1", "memory.offload_activations=all"}},
      {4, {"parallel.context=2", "batch.micro=1", "parallel.zero=2", "memory.recompute=ffn"}}};
  for (SharedLayout& layout : layouts) layout.overrides.emplace_back("parallel.context_method=ring");
  check_shared_layouts(
      Family::gpt2,
      {"data.mask_documents=true", R"(model.attention_pattern=["dense","band:3"])", "model.attention_softcap=0.5"},
      layouts);
  check_shared_layouts(Family::llama, {"data.mask_documents=true", "model.num_kv_heads=1"}, {layouts[1], layouts[3]});
}

// Four tokens that all see, and bands from some of which steps are skipped.
TEST_CASE("first moments of rings with sinks and tokens that all later ones see") {
  std::vector<SharedLayout> layouts = {
      {2, {"parallel.context=2", "batch.micro=2", "memory.recompute=selective"}},
      {5, {"parallel.context=5", "batch.micro=1", "parallel.zero=3"}},
      {4, {"parallel.context=2", "parallel.tensor=2", "batch.micro=2", "parallel.sequence=true"}},
      {4, {"parallel.context=2", "parallel.pipeline=2", "batch.micro=1", "memory.recompute=block"}}};
  for (SharedLayout& layout : layouts) layout.overrides.emplace_back("parallel.context_method=ring");
  const Overrides model = {"model.attention_sinks=true",
                           R"(model.attention_pattern=["band:3+global:4","dense+global:2","band:2+global:7"])"};
  check_shared_layouts(Family::llama, model, layouts);
  Overrides masked = model;
  masked.emplace_back("data.mask_documents=true");
  check_shared_layouts(Family::gpt2, masked, {layouts[0], layouts[1]});
}

TEST_CASE("ranks that pass keys and values on give the same bits with every schedule, recomputation and ZeRO stage",
          "[long]") {
  const auto run = [](int64_t world_size, const Overrides& layout) {
    Overrides overrides = {"parallel.context=2", "parallel.context_method=ring", "batch.micro=1",
                           "precision.compute=bf16"};
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    return train_on_ranks(shared_config(Family::llama, world_size, {"model.num_layers=4"}, overrides), world_size, 2);
  };
  const Outcome zero0 = run(2, {});
  require_same(zero0, run(2, {"parallel.zero=1", "memory.recompute=block"}));
  require_same(zero0, run(2, {"memory.recompute=ffn"}));
  require_same(zero0, run(4, {"parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble"}));
  require_same(zero0, run(4, {"parallel.pipeline=2", "parallel.pipeline_schedule=interleaved", "parallel.zero=1"}));
  require_same(run(2, {"parallel.zero=2"}),
               run(2, {"parallel.zero=3", "memory.recompute=every_nth", "memory.recompute_interval=2"}));
}

}  // namespace test_ring
