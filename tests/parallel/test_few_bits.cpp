// Training with few-bit derivatives of the activation: unchanged results, and the size of changes.
#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "same_outcomes.h"

namespace test_few_bits {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

Overrides with_bits(int64_t bits, const std::string& precision) {
  return {"model.activation=gelu", precision, fmt::format("memory.activation_bits={}", bits)};
}

}  // namespace

TEST_CASE(
    "with a derivative of few bits the loss is exact, and gradients are near the exact ones, nearer with more bits") {
  const SmallLayout one{1, 1, {}};
  const Outcome exact = train(one, with_bits(16, "precision.compute=fp32"), 1);
  double before = 1;
  for (const int64_t bits : {2, 3, 4}) {
    const Outcome coded = train(one, with_bits(bits, "precision.compute=fp32"), 1);
    REQUIRE(coded.losses == exact.losses);
    double furthest = 0;
    for (const auto& [name, values] : exact.state) {
      INFO(name);
      if (!name.starts_with("exp_avg/")) continue;
      const double distance = relative_distance(coded.state.at(name), values);
      CHECK(distance < (bits == 2 ? 0.32 : bits == 3 ? 0.16 : 0.08));
      furthest = std::max(furthest, distance);
    }
    CHECK(furthest > 1e-3);  // proves that backward reads the codes
    CHECK(furthest < 0.8 * before);
    before = furthest;
  }
}

TEST_CASE("a derivative of few bits has the same bits with every kind of sharding, in a pipeline and recomputed") {
  for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const auto run = [&](int64_t data, const Overrides& more, int64_t pipeline = 1) {
      return train({.tensor = 1, .data = data, .overrides = more, .pipeline = pipeline}, with_bits(3, precision), 3);
    };
    INFO(precision);
    require_same(run(3, {"parallel.zero=0"}), run(3, {"parallel.zero=1"}));
    require_same(run(3, {"parallel.zero=2"}), run(3, {"parallel.zero=3"}));
    const Outcome alone = run(1, {});
    require_same(alone, run(1, {}, 2));
    require_same(alone, run(1, {"memory.recompute=block"}));
    require_same(alone, run(1, {"memory.recompute=every_nth", "memory.recompute_interval=2"}));
  }
}

TEST_CASE(
    "tensor ranks code the derivative of their columns as one rank does, but where a sum rounds across a border") {
  const Outcome one = train({1, 1, {}}, with_bits(4, "precision.compute=fp32"), 1);
  for (const Overrides& more : {Overrides{}, Overrides{"parallel.sequence=true"}}) {
    const Outcome two = train({2, 1, more}, with_bits(4, "precision.compute=fp32"), 1);
    for (const auto& [name, values] : one.state) {
      INFO(name);
      if (name.starts_with("exp_avg/")) CHECK(relative_distance(two.state.at(name), values) < 2e-3);
    }
  }
}

}  // namespace test_few_bits
