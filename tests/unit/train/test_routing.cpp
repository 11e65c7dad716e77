// Routing of a step: loads of each layer, and experts that starve.
#include <string>
#include <vector>

#include "catch.h"
#include "train/routing.h"

namespace gptrain::test_routing {
namespace {

std::vector<LayerRouting> routing_of(std::vector<double> loads) {
  ModelConfig model;
  model.num_layers = 2;
  model.sequence_length = 8;
  model.moe.experts = 4;
  model.moe.top_k = 1;
  model.moe.first = 1;
  loads.insert(loads.end(), {0, 0, 0, 0});
  BatchConfig batch;
  batch.global = batch.micro = 1;
  return layer_routing(model, batch, loads);
}

}  // namespace

TEST_CASE("experts without tokens are warned of once, after many steps in a row") {
  REQUIRE(routing_of({0, 400, 399, 1}).at(0).starving == std::vector<int64_t>{0, 3});
  CHECK(routing_of({0, 400, 399, 1}).at(0).loads == std::vector<double>{0, 2, 1.995, 0.005});
  CHECK(routing_of({2, 2, 2, 2}).at(0).starving.empty());
  StarvingExperts starving;
  for (int64_t step = 1; step < StarvingExperts::most_steps; ++step)
    REQUIRE(starving.add(routing_of({0, 400, 399, step == 20 ? 100.0 : 0.0})).empty());
  CHECK(starving.add(routing_of({0, 400, 399, 0})) ==
        "experts have had less than 1% of the mean load for 50 logged steps: block 1: 0; a larger aux_loss of "
        "model.moe balances loads");
  for (int step = 0; step < 19; ++step) REQUIRE(starving.add(routing_of({0, 400, 399, 0})).empty());
  const std::string second = starving.add(routing_of({0, 400, 399, 0}));
  CHECK(second.find("block 1: 3;") != std::string::npos);
}

TEST_CASE("loads are recorded at most 128 times in a run, and always in a short one") {
  const auto records = [](int64_t steps, int64_t every) {
    int64_t number = 0;
    for (int64_t step = every; step <= steps; step += every) number += records_loads(step, steps, every);
    return number;
  };
  CHECK(records(100, 1) == 100);
  CHECK(records(100000, 10) == 126);
  CHECK(records(1280, 10) == 128);
}

}  // namespace gptrain::test_routing
