// Training with inputs of linears and norms saved as 8-bit codes: unchanged results, and the size of changes.
#include <algorithm>
#include <string>
#include <vector>

#include "same_outcomes.h"

namespace test_saved_inputs {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

Overrides with_codes(const std::string& precision) { return {precision, "memory.saved_inputs=8"}; }

}  // namespace

// Codes are off by up to 1/254 of a block's largest element, on average by 0.3% of a typical one.
TEST_CASE("with codes of inputs the loss is exact, and gradients are near the exact ones") {
  for (const char* activation : {"model.activation=gelu", "model.activation=swiglu"}) {
    const SmallLayout one{1, 1, {activation}};
    const Outcome exact = train(one, {"precision.compute=fp32"}, 1);
    const Outcome coded = train(one, with_codes("precision.compute=fp32"), 1);
    REQUIRE(coded.losses == exact.losses);
    double furthest = 0;
    for (const auto& [name, values] : exact.state) {
      INFO(activation << " " << name);
      if (!name.starts_with("exp_avg/")) continue;
      const double distance = relative_distance(coded.state.at(name), values);
      CHECK(distance < 0.02);
      furthest = std::max(furthest, distance);
    }
    CHECK(furthest > 1e-3);  // proves that backward reads the codes
  }
}

TEST_CASE("codes of inputs have the same bits with every kind of sharding, in a pipeline and recomputed") {
  for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const auto run = [&](int64_t data, const Overrides& more, int64_t pipeline = 1) {
      return train({.tensor = 1, .data = data, .overrides = more, .pipeline = pipeline}, with_codes(precision), 2);
    };
    INFO(precision);
    require_same(run(3, {"parallel.zero=0"}), run(3, {"parallel.zero=1"}));
    require_same(run(3, {"parallel.zero=2"}), run(3, {"parallel.zero=3"}));
    const Outcome alone = run(1, {});
    require_same(alone, run(1, {}, 2));
    require_same(alone, run(1, {"parallel.pipeline_schedule=zero-bubble"}, 2));
    require_same(alone, run(1, {"memory.recompute=block"}));
    require_same(alone, run(1, {"memory.recompute=every_nth", "memory.recompute_interval=2"}));
  }
}

TEST_CASE("tensor ranks code their columns with scales of their own, which changes gradients as little as codes do") {
  const Outcome one = train({1, 1, {}}, with_codes("precision.compute=fp32"), 1);
  for (const Overrides& more : {Overrides{}, Overrides{"parallel.sequence=true"}}) {
    const Outcome two = train({2, 1, more}, with_codes("precision.compute=fp32"), 1);
    for (const auto& [name, values] : one.state) {
      INFO(name);
      if (name.starts_with("exp_avg/")) CHECK(relative_distance(two.state.at(name), values) < 0.01);
    }
  }
}

TEST_CASE("ranks that share sequences code the rows that they have, which changes gradients as little as codes do") {
  const Outcome one = train({1, 1, {}}, with_codes("precision.compute=fp32"), 1);
  for (const char* method : {"heads", "ring"}) {
    const Outcome two = train({1, 2, {"parallel.context=2", std::string("parallel.context_method=") + method}},
                              with_codes("precision.compute=fp32"), 1);
    CHECK(two.losses.front() == Approx(one.losses.front()).epsilon(1e-5));
    for (const auto& [name, values] : one.state) {
      INFO(method << " " << name);
      if (name.starts_with("exp_avg/")) CHECK(relative_distance(two.state.at(name), values) < 0.01);
    }
  }
}

}  // namespace test_saved_inputs
