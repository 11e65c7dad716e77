// Training with projected inputs of linears: the estimates are unbiased, and the same for every layout.
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fit/choose_step.h"
#include "ops/backend.h"
#include "same_outcomes.h"
#include "wrappers.h"

namespace test_projection {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

std::string projected(const char* kind, double share, const char* sites = R"(["qkv","ffn_in","ffn_out"])") {
  return fmt::format(R"(memory.linear_projection={{"kind":"{}","share":{},"sites":{}}})", kind, share, sites);
}

bool is_estimated(const std::string& name) {
  return name.starts_with("exp_avg/") && (name.ends_with("attention.qkv.weight") || name.ends_with("ffn.in.weight") ||
                                          name.ends_with("ffn.out.weight"));
}

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double distance = 0;
  for (size_t i = 0; i < a.size(); ++i) distance += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return distance;
}
double squared_length(const std::vector<float>& a) { return squared_distance(a, std::vector<float>(a.size())); }

}  // namespace

TEST_CASE("a choice of all rows is the exact gradient, bit for bit") {
  const Overrides base = {"model.bias=true", "model.dropout=0.1", "batch.global=4"};
  for (const SmallLayout& layout :
       {SmallLayout{1, 1, {}}, SmallLayout{2, 1, {}}, SmallLayout{2, 1, {"parallel.sequence=true"}},
        SmallLayout{1, 1, {"precision.compute=bf16"}}}) {
    INFO(layout.tensor << " ranks" << (layout.overrides.empty() ? "" : ", " + layout.overrides.front()));
    const auto run = [&](Overrides more) {
      more.insert(more.end(), base.begin(), base.end());
      return train(layout, more, 1);
    };
    require_same(run({}), run({projected("rows", 1)}));
  }
}

// All frequencies make an orthonormal transform, which would expose any wrong factor; the tokens' signs cancel.
TEST_CASE("a projection to all frequencies is the exact gradient, to rounding") {
  const Overrides base = {"model.bias=true", "batch.global=4"};
  for (const SmallLayout& layout :
       {SmallLayout{1, 1, base}, SmallLayout{2, 1, {"parallel.sequence=true", "batch.global=4"}}}) {
    const Outcome exact = train(layout, {}, 1), projected_to_all = train(layout, {projected("dct", 1)}, 1);
    CHECK(projected_to_all.losses == exact.losses);
    for (const auto& [name, values] : exact.state) {
      INFO(layout.tensor << " ranks, " << name);
      if (!name.starts_with("exp_avg/")) continue;
      const double distance = squared_distance(projected_to_all.state.at(name), values);
      CHECK(distance <= 1e-5 * 1e-5 * squared_length(values) + 1e-20);
    }
  }
}

// M estimates g of the exact gradient e, from the same weights and tokens with different seeds: without a bias, M |mean
// - e|^2 equals |g - e|^2 on average, and a bias b adds M |b|^2. Both are sums over many directions, so their ratio is
// near 1. An unbiased estimate leaves the bounds with a probability below 10^-3.
TEST_CASE("the estimated gradients are unbiased, and all others exact", "[long]") {
  constexpr int seeds = 40;
  const SmallLayout one{1, 1, {"optimizer.clip_norm=0", "model.bias=true", "model.num_layers=1", "batch.global=2"}};
  const GlobalState start = train_on_ranks(config_of(one, {}), 1, 3).state;
  const Outcome exact = train_on_ranks(config_of(one, {}), 1, 1, &start);
  for (const char* kind : {"gauss", "rademacher", "dct", "rows"}) {
    std::map<std::string, std::vector<double>> sums;
    std::map<std::string, double> spread;
    for (int seed = 1; seed <= seeds; ++seed) {
      const RunConfig config = config_of(one, {projected(kind, 0.4), fmt::format("run.seed={}", seed)});
      const Outcome estimate = train_on_ranks(config, 1, 1, &start);
      REQUIRE(estimate.losses == exact.losses);
      for (const auto& [name, values] : estimate.state) {
        if (!name.starts_with("exp_avg/")) continue;
        INFO(kind << " " << name);
        if (!is_estimated(name)) REQUIRE(same_bits(values, exact.state.at(name)));
        std::vector<double>& sum = sums[name];
        sum.resize(values.size());
        for (size_t i = 0; i < values.size(); ++i) sum[i] += double{values[i]};
        spread[name] += squared_distance(values, exact.state.at(name));
      }
    }
    for (const auto& [name, sum] : sums) {
      if (!is_estimated(name)) continue;
      INFO(kind << " " << name);
      const std::vector<float>& e = exact.state.at(name);
      double of_mean = 0;
      for (size_t i = 0; i < e.size(); ++i) of_mean += std::pow(sum[i] / seeds - double{e[i]}, 2);
      const double ratio = seeds * of_mean / (spread.at(name) / seeds);
      CHECK(ratio > 0.4);
      CHECK(ratio < 1.8);
      CHECK(spread.at(name) / seeds > 0.05 * squared_length(e));  // proves that it is an estimate
    }
  }
}

namespace {

using Keys = std::set<std::pair<uint32_t, uint32_t>>;

// Records the key of each projection.
class KeyRecorder final : public ForwardingBackend {
 public:
  KeyRecorder(Backend& inner, Keys& keys) : ForwardingBackend(inner), keys_(keys) {}

  using ForwardingBackend::run;
  void run(const ProjectionMatrix& op) override { note(op.key, op); }
  void run(const SampleRows& op) override { note(op.key, op); }

 private:
  template <typename Op>
  void note(const PhiloxKey& key, const Op& op) {
    keys_.insert({key.k0, key.k1});
    ForwardingBackend::run(op);
  }

  Keys& keys_;
};

}  // namespace

TEST_CASE("each linear of each layer has a projection of its own") {
  for (const char* kind : {"gauss", "rademacher", "dct", "rows"}) {
    const RunConfig config = config_of({1, 1, {}}, {projected(kind, 0.4)});
    Keys keys;
    const Wrapping recording{
        .backend = [&](int64_t, Backend& inner) { return std::make_unique<KeyRecorder>(inner, keys); }};
    train_on_ranks(config, 1, 2, nullptr, 0, recording);
    INFO(kind);
    CHECK(std::ssize(keys) == 3 * config.model.num_layers);
  }
}

TEST_CASE("estimates have the same bits with every kind of sharding, in a pipeline and recomputed") {
  for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const auto run = [&](int64_t data, const Overrides& more, int64_t pipeline = 1) {
      return train({.tensor = 1, .data = data, .overrides = more, .pipeline = pipeline},
                   {precision, projected("gauss", 0.2), "batch.global=6"}, 2);
    };
    require_same(run(3, {"parallel.zero=0"}), run(3, {"parallel.zero=1"}));
    require_same(run(3, {"parallel.zero=2"}), run(3, {"parallel.zero=3"}));
    const Outcome alone = run(1, {});
    require_same(alone, run(1, {}));
    require_same(alone, run(1, {}, 2));
    require_same(alone, run(1, {"parallel.pipeline_schedule=zero-bubble"}, 2));
    require_same(alone, run(1, {"memory.recompute=block"}));
    require_same(alone, run(1, {"memory.recompute=selective"}));
    require_same(alone, run(1, {"memory.recompute=ffn"}));
    require_same(alone, run(1, {"memory.recompute=every_nth", "memory.recompute_interval=2"}));
  }
}

TEST_CASE("estimates are one rank's with tensor, sequence and data ranks and other micro-batches, to rounding") {
  for (const char* kind : {"gauss", "dct", "rows"}) {
    const Overrides base = {"precision.compute=fp32", "model.bias=true", "model.num_layers=2", projected(kind, 0.3)};
    const Outcome one = train({1, 1, {}}, base, 1);
    std::vector<SmallLayout> layouts = {{2, 2, {"parallel.sequence=true", "batch.micro=6"}}, {1, 1, {"batch.micro=3"}}};
    if (kind[0] == 'g') layouts.insert(layouts.end(), {{2, 1, {}}, {1, 3, {}}, {1, 3, {"parallel.zero=3"}}});
    for (const SmallLayout& layout : layouts) {
      const Outcome many = train(layout, base, 1);
      INFO(kind << " tensor " << layout.tensor << " data " << layout.data);
      CHECK(many.torn == "");
      for (const auto& [name, values] : one.state) {
        INFO(name);
        if (!name.starts_with("exp_avg/")) continue;
        const double distance = squared_distance(many.state.at(name), values);
        CHECK(distance <= 2e-5 * 2e-5 * squared_length(values) + 1e-20);
      }
    }
  }
}

TEST_CASE("projections have no place in the model's FLOPs, and the hardware's count what runs") {
  const RunConfig plain = config_of({1, 1, {}}, {});
  const Target target = make_cpu_backend(1)->target();
  const OpTotals without = plan_rank({plain, target}).total();
  const auto executed = [&](const char* kind, const char* sites) {
    const OpTotals with = plan_rank({config_of({1, 1, {}}, {projected(kind, 0.3, sites)}), target}).total();
    CHECK(with.model_flops == without.model_flops);
    return static_cast<double>(with.executed_flops) - static_cast<double>(without.executed_flops);
  };
  // 12 sequences of 20 tokens with 6 projected rows each, in 3 blocks.
  const double samples = 12 * 3, in = 48, out = 120;
  const double saved = 2 * samples * (20 - 6) * in * out;
  CHECK(executed("rows", R"(["ffn_in"])") == -saved);
  CHECK(executed("gauss", R"(["ffn_in"])") == 2 * samples * 20 * 6 * (in + out) - saved);
}

}  // namespace test_projection
