// Ranks that share sequences: results of one rank, and the same bits where layouts promise them.
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "same_outcomes.h"
#include "shared_sequences.h"

namespace test_context {

using namespace gptrain;
using namespace gptrain::testing;

TEST_CASE("first moments of ranks that share sequences, with documents and patterns of attention") {
  const std::vector<SharedLayout> layouts = {
      {2, {"parallel.context=2", "batch.micro=2", "memory.recompute=block"}},
      {4, {"parallel.context=4", "batch.micro=1", "parallel.zero=3"}},
      {4,
       {"parallel.context=2", "parallel.tensor=2", "batch.micro=2", "parallel.sequence=true",
        "memory.recompute=selective"}},
      {4, {"parallel.context=2", "parallel.pipeline=2", "batch.micro=1", "memory.offload_activations=all"}},
      {4, {"parallel.context=2", "batch.micro=1", "parallel.zero=2", "memory.recompute=ffn"}}};
  check_shared_layouts(Family::gpt2,
                       {"data.mask_documents=true", R"(model.attention_pattern=["dense","band:6+global:2"])",
                        "model.attention_softcap=0.5"},
                       layouts);
  check_shared_layouts(Family::llama,
                       {"data.mask_documents=true", R"(model.attention_pattern=["fixed:10,2","strided:7","dense"])",
                        "model.attention_sinks=true"},
                       layouts);
}

TEST_CASE("first moments of two, four and five ranks a sequence, with stages, documents and dropout", "[long]") {
  const auto layout = [](int64_t world_size, const std::string& context, const std::string& method, Overrides more) {
    more.insert(more.end(), {"parallel.context=" + context, "parallel.context_method=" + method, "batch.micro=1"});
    return SharedLayout{world_size, std::move(more)};
  };
  const std::string stages = "parallel.pipeline=2",
                    schedule = "parallel.pipeline_schedule=", tensor = "parallel.tensor=2",
                    sequence = "parallel.sequence=true", zero = "parallel.zero=";
  const std::vector<SharedLayout> layouts = {
      layout(4, "2", "heads", {stages, schedule + "zero-bubble", zero + "1", "memory.recompute=ffn"}),
      layout(8, "2", "ring", {stages, tensor, sequence}),
      layout(8, "4", "heads", {stages, zero + "3"}),
      layout(8, "4", "ring", {stages, schedule + "interleaved", zero + "2", "memory.recompute=ffn"}),
      layout(8, "4", "ring", {tensor, sequence, zero + "3", "memory.recompute=selective"}),
      layout(10, "5", "heads", {stages, schedule + "gpipe", zero + "2", "memory.recompute=block"}),
      layout(10, "5", "heads", {tensor, sequence}),
      layout(10, "5", "ring", {stages, schedule + "zero-bubble-v", zero + "1"})};
  const Overrides model = {"model.num_layers=4", "model.num_heads=20", "model.hidden_size=80",
                           "model.sequence_length=40", "data.mask_documents=true"};
  check_shared_layouts(Family::gpt2, model, layouts);
  Overrides grouped = model;
  grouped.emplace_back("model.num_kv_heads=1");
  check_shared_layouts(Family::llama, grouped, layouts);
}

TEST_CASE("ranks that share sequences give the same bits with every schedule, recomputation and ZeRO stage", "[long]") {
  const auto run = [](int64_t world_size, const Overrides& layout) {
    Overrides overrides = {"parallel.context=2", "batch.micro=1", "precision.compute=bf16"};
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    return train_on_ranks(shared_config(Family::llama, world_size, {"model.num_layers=4"}, overrides), world_size, 2);
  };
  const Outcome zero0 = run(2, {});
  require_same(zero0, run(2, {"parallel.zero=1", "memory.recompute=block"}));
  require_same(zero0, run(2, {"memory.recompute=selective"}));
  require_same(zero0, run(2, {"memory.recompute=ffn"}));
  require_same(zero0, run(4, {"parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble"}));
  require_same(zero0, run(4, {"parallel.pipeline=2", "parallel.pipeline_schedule=interleaved", "parallel.zero=1"}));
  const Outcome zero2 = run(2, {"parallel.zero=2"});
  require_same(zero2, run(2, {"parallel.zero=3", "memory.recompute=every_nth", "memory.recompute_interval=2"}));
}

}  // namespace test_context
