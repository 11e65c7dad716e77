// Optimizers other than AdamW over layouts: the same bits where promised, and one rank's results.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "same_outcomes.h"

namespace test_optimizers {

using namespace gptrain;
using namespace gptrain::testing;
using gptrain::testing::train;

namespace {

const Overrides sgd = {"optimizer.type=sgd", "optimizer.momentum=0.8", "optimizer.nesterov=true"};
const Overrides lion = {"optimizer.type=lion"};
// The eps of layouts.cpp: the first step must not depend on the sign of a gradient that is zero except for rounding.
const Overrides lamb = {"optimizer.type=lamb", "optimizer.eps=1e-4"};
const Overrides lars = {"optimizer.type=lars", "optimizer.trust_coefficient=0.1"};
const Overrides muon = {"optimizer.type=muon", "optimizer.eps=1e-4"};
// Rates are relative to the weights. The eps, like lamb's, prevents steps by gradients that are zero except for
// rounding.
const Overrides adafactor = {"optimizer.type=adafactor", "optimizer.eps=1e-8"};
const Overrides adamw_8bit = {"optimizer.type=adamw-8bit"};

Overrides with(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

struct Compared {
  Outcome one, many;
};

// A step with fresh moments on one rank and on a layout, from weights after ten steps.
Compared compared_step(const SmallLayout& layout, const Overrides& optimizer) {
  const SmallLayout alone{1, 1, {}};
  const GlobalState start = train(alone, optimizer, 10).state;
  return {train_on_ranks(config_of(alone, optimizer), 1, 1, &start, 1000),
          train_on_ranks(config_of(layout, optimizer), layout.world_size(), 1, &start, 1000)};
}

const std::vector<SmallLayout> layouts = {{2, 1, {}},
                                          {1, 3, {"parallel.zero=1"}},
                                          {2, 2, {"parallel.zero=2", "parallel.sequence=true"}},
                                          {2, 2, {"parallel.zero=3"}},
                                          {.tensor = 1, .data = 2, .overrides = {"parallel.zero=1"}, .pipeline = 2}};

}  // namespace

TEST_CASE("each optimizer has the same bits with ZeRO 0 and 1, 2 and 3, and with pipelines", "[long]") {
  for (const Overrides& optimizer : {sgd, lion, lamb, lars, muon, adamw_8bit, adafactor}) {
    for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16", "precision.compute=bf16-pure"}) {
      INFO(optimizer.front() << " " << precision);
      const Overrides more = with(optimizer, {precision, "optimizer.ema=0.9"});
      const auto zero = [&](int64_t stage, int64_t data, int64_t pipeline) {
        return train(
            {.tensor = 1, .data = data, .overrides = {fmt::format("parallel.zero={}", stage)}, .pipeline = pipeline},
            more, 3);
      };
      require_same(zero(0, 3, 1), zero(1, 3, 1));
      require_same(zero(2, 3, 1), zero(3, 3, 1));
      require_same(zero(0, 1, 1), zero(0, 1, 2));
    }
  }
}

TEST_CASE("an average of the weights changes no bit of any optimizer") {
  for (const Overrides& optimizer : {sgd, lion, lars, muon, adamw_8bit, adafactor}) {
    INFO(optimizer.front());
    const SmallLayout layout{1, 2, {"parallel.zero=1"}};
    const Outcome averaged = train(layout, with(optimizer, {"optimizer.ema=0.9"}), 3);
    const Outcome plain = train(layout, optimizer, 3);
    require_bits_of(plain, averaged);
    CHECK(plain.losses == averaged.losses);
    const auto tensors = std::count_if(plain.state.begin(), plain.state.end(),
                                       [](const auto& entry) { return entry.first.starts_with("weight/"); });
    CHECK(std::ssize(averaged.state) == std::ssize(plain.state) + tensors);
  }
}

TEST_CASE("SGD, LAMB, LARS, Muon and Adafactor take the step of one rank on every layout", "[long]") {
  for (const Overrides& optimizer : {sgd, lamb, lars, muon, adafactor}) {
    for (const SmallLayout& layout : layouts) {
      const auto [one, many] = compared_step(layout, optimizer);
      const Difference d = difference(make_spec(config_of(layout, optimizer).model), one, many);
      INFO(optimizer.front() << ", " << layout.world_size() << " ranks, moment " << d.first_moment << " of "
                             << d.moment_of << ", weight " << d.weight << " of " << d.weight_of);
      CHECK(d.small());
    }
  }
}

// The table of a tied head is on two stages, and the only key-value head, part of a tensor, on both tensor ranks. They
// must not count twice in the tensor's norms, nor reach the orthogonalising rank twice.
TEST_CASE("LAMB, LARS, Muon and Adafactor count what several ranks hold once", "[long]") {
  const Overrides tied = {"model.tied_head=true", "model.num_kv_heads=1"};
  for (const Overrides& optimizer : {lamb, lars, muon, adafactor}) {
    for (const SmallLayout& layout :
         {SmallLayout{.tensor = 1, .data = 2, .overrides = {"parallel.zero=1"}, .pipeline = 2},
          SmallLayout{.tensor = 2, .data = 1, .overrides = {}, .pipeline = 2},
          SmallLayout{2, 2, {"parallel.zero=3"}}}) {
      const auto [one, many] = compared_step(layout, with(optimizer, tied));
      const Difference d = difference(make_spec(config_of(layout, tied).model), one, many);
      INFO(optimizer.front() << ", " << layout.world_size() << " ranks, moment " << d.first_moment << " of "
                             << d.moment_of << ", weight " << d.weight << " of " << d.weight_of);
      CHECK(d.small());
    }
  }
}

// Matrices of which ranks have parts of rows; their sums go over all ranks.
TEST_CASE("Adafactor's rows and columns are summed over every kind of layout") {
  for (const SmallLayout& layout :
       {SmallLayout{1, 3, {"parallel.zero=0"}}, SmallLayout{1, 6, {"parallel.zero=1"}},
        SmallLayout{2, 3, {"parallel.zero=1", "parallel.sequence=true"}},
        SmallLayout{.tensor = 2, .data = 2, .overrides = {"parallel.zero=2"}, .pipeline = 2},
        SmallLayout{.tensor = 1, .data = 1, .overrides = {}, .pipeline = 3},
        SmallLayout{.tensor = 1,
        .data = 2,
        .overrides = {"parallel.zero=2", "parallel.rank_order=tensor-pipeline-data"},
        .pipeline = 2}}) {
    for (const Overrides& more :
         {Overrides{}, Overrides{"optimizer.scale_parameter=false", "optimizer.clip_threshold=0.5"}}) {
      const auto [one, many] = compared_step(layout, with(adafactor, more));
      const Difference d = difference(make_spec(config_of(layout, adafactor).model), one, many);
      INFO(layout.world_size() << " ranks, moment " << d.first_moment << " of " << d.moment_of << ", weight "
                               << d.weight << " of " << d.weight_of);
      CHECK(d.small());
    }
  }
}

// With a tied table the last unit is only a norm, wide enough that its bias, with another root mean square than its
// weight, is on the second rank.
TEST_CASE(
    "Adafactor measures the norm of a tied head that two ranks share, whether each holds all of it or its piece") {
  const auto zero = [](int stage) {
    const RunConfig config = small_config(Family::gpt2,
                                          with(adafactor, {"precision.compute=bf16-pure", "model.hidden_size=264",
                                                           fmt::format("parallel.zero={}", stage), "batch.micro=2"}),
                                          2);
    return train_on_ranks(config, 2, 2);
  };
  require_same(zero(0), zero(1));
}

// The ranks of a stage take turns, and none holds a whole matrix: pieces begin and end within rows.
TEST_CASE("Muon's matrices come from every kind of layout and go back") {
  for (const SmallLayout& layout :
       {SmallLayout{1, 3, {"parallel.zero=0"}}, SmallLayout{1, 3, {"parallel.zero=2"}},
        SmallLayout{1, 3, {"parallel.zero=3"}}, SmallLayout{1, 6, {"parallel.zero=1"}},
        SmallLayout{2, 3, {"parallel.zero=1", "parallel.sequence=true"}},
        SmallLayout{.tensor = 2, .data = 2, .overrides = {"parallel.zero=0"}, .pipeline = 2},
        SmallLayout{.tensor = 2, .data = 2, .overrides = {"parallel.zero=1"}, .pipeline = 2},
        SmallLayout{.tensor = 1, .data = 1, .overrides = {}, .pipeline = 3},
        SmallLayout{.tensor = 1,
        .data = 2,
        .overrides = {"parallel.zero=2", "parallel.rank_order=tensor-pipeline-data"},
        .pipeline = 2}}) {
    const auto [one, many] = compared_step(layout, muon);
    const Difference d = difference(make_spec(config_of(layout, muon).model), one, many);
    INFO(layout.world_size() << " ranks " << (layout.overrides.empty() ? "" : layout.overrides.front()) << ", moment "
                             << d.first_moment << " of " << d.moment_of << ", weight " << d.weight << " of "
                             << d.weight_of);
    CHECK(d.small());
  }
}

// The only key-value head is on both tensor ranks, and each rank knows the scores of its own query heads alone.
TEST_CASE("QK-clip scales heads as on one rank") {
  const Overrides clip = with(muon, {"model.qk_norm=false", "model.num_kv_heads=1", "optimizer.qk_clip=0.05"});
  for (const SmallLayout& layout :
       {SmallLayout{2, 1, {}}, SmallLayout{2, 2, {"parallel.zero=3"}},
        SmallLayout{.tensor = 1, .data = 2, .overrides = {"parallel.zero=1"}, .pipeline = 2}}) {
    const auto [one, many] = compared_step(layout, clip);
    const Difference d = difference(make_spec(config_of(layout, clip).model), one, many);
    INFO(layout.world_size() << " ranks, moment " << d.first_moment << " of " << d.moment_of << ", weight " << d.weight
                             << " of " << d.weight_of);
    CHECK(d.small());
  }
}

// Lion's step is the sign of the gradient, which rounding flips if the gradient is almost zero. All other weights are
// those of one rank.
TEST_CASE("Lion takes the step of one rank on every layout but where the gradient is zero to rounding") {
  for (const SmallLayout& layout : layouts) {
    const auto [one, many] = compared_step(layout, lion);
    const ModelSpec spec = make_spec(config_of(layout, lion).model);
    const Difference d = difference(spec, one, many);
    INFO(layout.world_size() << " ranks, moment " << d.first_moment << " of " << d.moment_of);
    CHECK(d.torn.empty());
    CHECK(d.first_moment < 2e-5);
    int64_t turned = 0, large = 0, all = 0;
    for (const TensorSpec& tensor : spec.tensors) {
      const std::vector<float>&a = one.state.at("weight/" + tensor.name), &b = many.state.at("weight/" + tensor.name);
      const std::vector<float>& moment = one.state.at("exp_avg/" + tensor.name);
      float largest = 0;
      for (const float value : moment) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < a.size(); ++i) {
        if (std::abs(a[i] - b[i]) <= 1e-6F) continue;
        ++turned;
        large += std::abs(moment[i]) > 1e-4F * largest ? 1 : 0;
      }
      all += std::ssize(a);
    }
    CHECK(large == 0);
    CHECK(turned <= all / 1000);
  }
}

}  // namespace test_optimizers
