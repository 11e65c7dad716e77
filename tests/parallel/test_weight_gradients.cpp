// Training with narrower operands in weight-gradient products: bf16 in fp32 training, FP8 in bf16 training.
#include <string>
#include <vector>

#include "same_outcomes.h"

namespace test_weight_gradients {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

const Overrides rounded = {"precision.weight_gradients=bf16", "model.bias=true"};

bool is_product(const std::string& name) {
  return name.ends_with("attention.qkv.weight") || name.ends_with("attention.out.weight") ||
         name.ends_with("ffn.in.weight") || name.ends_with("ffn.out.weight");
}

// Requires the same bits over ranks, stages and recomputation.
void require_same_however_run(const Overrides& factors) {
  const auto run = [&](int64_t data, const Overrides& more, int64_t pipeline = 1) {
    return train({.tensor = 1, .data = data, .overrides = more, .pipeline = pipeline}, factors, 2);
  };
  require_same(run(3, {"parallel.zero=0"}), run(3, {"parallel.zero=1"}));
  require_same(run(3, {"parallel.zero=2"}), run(3, {"parallel.zero=3"}));
  const Outcome alone = run(1, {});
  require_same(alone, run(1, {}, 2));
  require_same(alone, run(1, {"parallel.pipeline_schedule=zero-bubble"}, 2));
  require_same(alone, run(1, {"memory.recompute=block"}));
  require_same(alone, run(1, {"memory.recompute=selective"}));
  require_same(alone, run(1, {"memory.recompute=ffn"}));
}

}  // namespace

// A number rounded to bf16 is off by up to 2^-8 of itself; the errors of two operands are independent.
TEST_CASE("with factors in bf16 gradients of weights are near those of fp32, and all others exact") {
  const SmallLayout one{1, 1, {"optimizer.clip_norm=0"}};
  const Outcome exact = train(one, {"model.bias=true"}, 1);
  const Outcome coarse = train(one, rounded, 1);
  REQUIRE(coarse.losses == exact.losses);
  for (const auto& [name, values] : exact.state) {
    INFO(name);
    if (!name.starts_with("exp_avg/")) continue;
    if (!is_product(name)) {
      REQUIRE(same_bits(coarse.state.at(name), values));
      continue;
    }
    const double distance = relative_distance(coarse.state.at(name), values);
    CHECK(distance > 2e-4);
    CHECK(distance < 5e-3);
  }
}

TEST_CASE("factors in bf16 have the same bits with every kind of sharding, in a pipeline and recomputed") {
  require_same_however_run(rounded);
}

TEST_CASE("tensor ranks round factors as one rank does, but where a sum is rounded the other way") {
  const Outcome one = train({1, 1, {"run.seed=2"}}, rounded, 1);
  for (const Overrides& more : {Overrides{"run.seed=2"}, Overrides{"run.seed=2", "parallel.sequence=true"}}) {
    const Outcome two = train({2, 1, more}, rounded, 1);
    for (const auto& [name, values] : one.state) {
      INFO(name);
      if (name.starts_with("exp_avg/")) CHECK(relative_distance(two.state.at(name), values) < 1e-4);
    }
  }
}

TEST_CASE("projections and 8-bit inputs go with factors in bf16") {
  const Outcome exact = train({1, 1, {}}, {"model.bias=true"}, 1);
  for (const char* more : {"memory.saved_inputs=8", R"(memory.linear_projection={"kind":"rows","share":1})"}) {
    const Outcome both = train({1, 1, {more}}, rounded, 1);
    REQUIRE(both.losses == exact.losses);
    for (const auto& [name, values] : exact.state) {
      INFO(more << " " << name);
      if (name.starts_with("exp_avg/")) CHECK(relative_distance(both.state.at(name), values) < 0.02);
    }
  }
}

namespace {

// Sizes that FP8 products accept.
const Overrides in_bf16 = {
    "model.bias=true",          "model.hidden_size=64",   "model.num_heads=4", "model.ffn_hidden_size=128",
    "model.sequence_length=16", "precision.compute=bf16", "run.device=auto"};
const Overrides in_fp8 = [] {
  Overrides all = in_bf16;
  all.emplace_back("precision.weight_gradients=fp8");
  return all;
}();

}  // namespace

// Numbers rounded to E4M3 and E5M2 are off by 2.6% and 5.2% of themselves (root mean square).
TEST_CASE("with factors in FP8 gradients of weights are near those of bf16, and losses exact") {
  const SmallLayout one{1, 1, {"optimizer.clip_norm=0"}};
  const Outcome exact = train(one, in_bf16, 1);
  const Outcome coarse = train(one, in_fp8, 1);
  REQUIRE(coarse.losses == exact.losses);
  int64_t products = 0;
  for (const auto& [name, values] : exact.state) {
    INFO(name);
    if (!name.starts_with("exp_avg/")) continue;
    const double distance = relative_distance(coarse.state.at(name), values);
    if (is_product(name)) {
      ++products;
      CHECK(distance > 0.02);
      CHECK(distance < 0.1);
    } else if (name.ends_with("bias")) {
      CHECK(distance < 1e-4);  // summed by another op
    } else {
      REQUIRE(distance == 0);
    }
  }
  CHECK(products > 0);
}

TEST_CASE("factors in FP8 have the same bits with every kind of sharding, in a pipeline and recomputed") {
  require_same_however_run(in_fp8);
}

}  // namespace test_weight_gradients
