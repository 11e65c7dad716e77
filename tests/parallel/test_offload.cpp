// Saved activations offloaded to the host: the same bits as without, in all layouts.
#include <fmt/format.h>
#include <string>
#include <vector>

#include "same_outcomes.h"

namespace test_offload {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

TEST_CASE(
    "offloaded activations have the bits of those on the device, with every kind of sharding and of recomputation") {
  const std::vector<SmallLayout> layouts = {
      {1, 1, {"batch.micro=3", "model.dropout=0.1"}},
      {1, 1, {"precision.compute=bf16", "memory.recompute=selective"}},
      {1, 1, {"batch.micro=6", "memory.saved_inputs=8", "memory.recompute=block"}},
      {1, 2, {"parallel.zero=1", "precision.compute=bf16-pure", "memory.recompute=block"}},
      {1, 3, {"parallel.zero=2", "memory.recompute=every_nth", "memory.recompute_interval=2", "batch.micro=2"}},
      {1, 2, {"parallel.zero=3", "precision.compute=bf16", "batch.micro=2"}},
      {2, 1, {"parallel.sequence=true", "batch.micro=4", "memory.recompute=selective"}},
      {.tensor = 1,
       .data = 1,
       .overrides = {"batch.micro=2", "model.activation=gelu", "memory.activation_bits=3"},
       .pipeline = 2},
      {.tensor = 1,
       .data = 2,
       .overrides = {"batch.micro=2", "parallel.zero=3", "parallel.pipeline_schedule=zero-bubble",
                     "memory.recompute=ffn"},
       .pipeline = 2},
      {.tensor = 1,
       .data = 1,
       .overrides = {"batch.micro=1", "parallel.pipeline_schedule=gpipe", "memory.recompute=block"},
       .pipeline = 2},
      {.tensor = 1,
       .data = 1,
       .overrides = {"batch.micro=2", "parallel.pipeline_schedule=interleaved", "parallel.virtual_stages=2"},
       .pipeline = 2},
      {.tensor = 2,
       .data = 1,
       .overrides = {"batch.micro=3", "parallel.pipeline_schedule=zero-bubble-v", "parallel.virtual_stages=2"},
       .pipeline = 2},
  };
  for (const SmallLayout& layout : layouts) {
    const Overrides deep = {"model.num_layers=6"};
    const Outcome saves_all = train(layout, deep, 2);
    for (const char* const blocks : {"all", "2"}) {
      INFO(fmt::format("{} {}", layout.overrides.back(), blocks));
      Overrides more = deep;
      more.push_back(fmt::format("memory.offload_activations={}", blocks));
      require_same(saves_all, train(layout, more, 2));
    }
  }
}

}  // namespace test_offload
