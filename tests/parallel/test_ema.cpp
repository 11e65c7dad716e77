// The moving average of the weights (optimizer.ema): its values on every layout, and validations with it.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "layouts.h"
#include "model_fixture.h"
#include "step/averaged_weights.h"

namespace test_ema {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

const std::vector<SmallLayout> layouts = {{1, 1, {}},
                                          {1, 3, {"parallel.zero=0"}},
                                          {1, 3, {"parallel.zero=1"}},
                                          {2, 2, {"parallel.zero=2", "parallel.sequence=true"}},
                                          {2, 2, {"parallel.zero=3"}}};
constexpr const char* precisions[] = {"precision.compute=fp32", "precision.compute=bf16",
                                      "precision.compute=bf16-pure"};

}  // namespace

TEST_CASE("the average of the weights is that of the weights after each step, which it does not change", "[long]") {
  constexpr double decay = 0.9;
  constexpr int steps = 4;
  for (const SmallLayout& layout : layouts) {
    for (const char* precision : {precisions[0], precisions[1]}) {
      INFO("tensor " << layout.tensor << " data " << layout.data << " " << precision);
      std::map<std::string, std::vector<double>> sums;
      double shares = 0;
      for (int done = 1; done <= steps; ++done) {
        const Outcome plain = train(layout, {precision}, done);
        shares = decay * shares + 1;
        for (const auto& [name, values] : plain.state) {
          if (!name.starts_with("weight/")) continue;
          std::vector<double>& sum = sums[name.substr(std::string("weight/").size())];
          sum.resize(values.size());
          for (size_t i = 0; i < values.size(); ++i) sum[i] = decay * sum[i] + values[i];
        }
        if (done < steps) continue;
        const Outcome averaged = train(layout, {precision, fmt::format("optimizer.ema={}", decay)}, done);
        REQUIRE(averaged.torn.empty());
        CHECK(averaged.losses == plain.losses);
        for (const auto& [name, values] : plain.state) {
          INFO(name);
          CHECK(same_bits(averaged.state.at(name), values));
        }
        for (const auto& [name, sum] : sums) {
          INFO(name);
          const std::vector<float>& ema = averaged.state.at("ema/" + name);
          REQUIRE(ema.size() == sum.size());
          double largest = 0;
          for (size_t i = 0; i < sum.size(); ++i)
            largest = std::max(largest, std::abs(ema[i] - sum[i] / shares) / (std::abs(sum[i] / shares) + 1e-3));
          CHECK(largest < 4 * steps * 0x1p-24);
        }
      }
    }
  }
}

TEST_CASE("the average has the same bits with ZeRO 0 and 1, 2 and 3, and with pipelines", "[long]") {
  for (const char* precision : precisions) {
    const auto run = [&](int64_t data, const Overrides& more, int64_t pipeline = 1) {
      return train({.tensor = 1, .data = data, .overrides = more, .pipeline = pipeline},
                   {precision, "optimizer.ema=0.9"}, 3);
    };
    const auto require_same_averages = [&](const Outcome& a, const Outcome& b) {
      REQUIRE(a.torn + b.torn == "");
      int64_t averages = 0;
      for (const auto& [name, values] : a.state) {
        INFO(name);
        REQUIRE(same_bits(values, b.state.at(name)));
        averages += name.starts_with("ema/") ? 1 : 0;
      }
      CHECK(averages > 0);
    };
    require_same_averages(run(3, {"parallel.zero=0"}), run(3, {"parallel.zero=1"}));
    require_same_averages(run(3, {"parallel.zero=2"}), run(3, {"parallel.zero=3"}));
    require_same_averages(run(1, {"parallel.zero=0"}), run(1, {"parallel.zero=0"}, 2));
  }
}

TEST_CASE("an evaluation of the average is one of a model with these weights, and leaves no trace", "[long]") {
  struct Sums {
    double averaged = 0, before = 0, after = 0;
  };
  for (const SmallLayout& layout : layouts) {
    for (const char* precision : precisions) {
      INFO("tensor " << layout.tensor << " data " << layout.data << " " << precision);
      // Adafactor's state is partly without weights.
      const char* const type = layout.tensor > 1 ? "optimizer.type=adafactor" : "optimizer.type=adamw";
      const Overrides more = {precision, "optimizer.ema=0.5", type};
      const RunConfig config = config_of(layout, more);
      const auto evaluate = [&](RankContext& rank) {
        RandomBatches samples(config, 500, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
        return rank.step.evaluate(12 / (config.batch.micro * layout.data), samples);
      };
      std::vector<Sums> sums(static_cast<size_t>(layout.world_size()));
      on_ranks(config, layout.world_size(), nullptr, {}, [&](RankContext& rank) {
        RandomBatches training(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
        for (int i = 0; i < 3; ++i) rank.step.run(1e-3, training);
        Sums& own = sums[static_cast<size_t>(rank.groups.rank())];
        own.before = evaluate(rank);
        AveragedWeights average(rank.step);
        own.averaged = evaluate(rank);
        average.restore();
        own.after = evaluate(rank);
      });
      for (const Sums& own : sums) {
        CHECK(own.averaged == sums.front().averaged);
        CHECK(own.before == own.after);
        CHECK(own.averaged != own.before);
      }
      if (config.precision.pure) continue;  // the test gives master weights only
      GlobalState averages;
      for (const auto& [name, values] : train(layout, more, 3).state) {
        if (name.starts_with("ema/")) averages["weight/" + name.substr(std::string("ema/").size())] = values;
      }
      on_ranks(config, layout.world_size(), &averages, {},
               [&](RankContext& rank) { sums[static_cast<size_t>(rank.groups.rank())].before = evaluate(rank); });
      for (const Sums& own : sums) CHECK(own.before == own.averaged);
    }
  }
}

}  // namespace test_ema
