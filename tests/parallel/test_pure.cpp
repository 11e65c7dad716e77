// bf16 weights without master weights (precision.compute "bf16-pure"): the same bits over layouts, and successful
// learning.
#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "model/spec/tensor_key.h"
#include "model_fixture.h"
#include "pure_training.h"
#include "ranks.h"
#include "wrappers.h"

namespace test_pure {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr const char* wide = "fp32";  // gradients' type

bool is_norm(const std::string& name) { return name.find("norm") != std::string::npos; }

// Returns the share of the bf16 weights that differ.
double share_differing(const Outcome& a, const Outcome& b) {
  double differing = 0, all = 0;
  for (const auto& [name, values] : a.state) {
    if (!name.starts_with("weight/") || is_norm(name)) continue;
    const std::vector<float>& others = b.state.at(name);
    for (size_t i = 0; i < values.size(); ++i) differing += values[i] != others[i] ? 1 : 0;
    all += static_cast<double>(values.size());
  }
  return differing / all;
}

// Replaces stochastic rounding by rounding to nearest.
class RoundsToNearest final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  using ForwardingBackend::run;
  void run(const AdamW& op) override {
    if (op.master.given()) return inner_.run(op);
    std::vector<float> master(static_cast<size_t>(op.weights.cols));
    const auto* const weights = op.weights.as<const bf16>();
    std::transform(weights, weights + master.size(), master.begin(), [](bf16 value) { return to_float(value); });
    AdamW nearest = op;
    nearest.master = Matrix(master.data(), DType::f32, 1, op.weights.cols);
    inner_.run(nearest);
  }
};

using Keys = std::set<std::pair<uint32_t, uint32_t>>;

// Records the keys of stochastic rounding.
class KeyRecorder final : public ForwardingBackend {
 public:
  KeyRecorder(Backend& inner, Keys& keys) : ForwardingBackend(inner), keys_(keys) {}

  using ForwardingBackend::run;
  void run(const AdamW& op) override {
    for (int64_t i = 0; i < op.num_segments && !op.master.given(); ++i)
      keys_.emplace(op.segments[i].key.k0, op.segments[i].key.k1);
    inner_.run(op);
  }

 private:
  Keys& keys_;
};

}  // namespace

TEST_CASE("without masters: ZeRO 0 and 1, and 2 and 3, give the same bits, with every recompute mode") {
  require_same_over_zero(wide, 2);
}

TEST_CASE("without masters, one micro-batch a step: the same weights with every ZeRO stage, seed by seed") {
  const auto run = [&](const char* zero, const char* seed) {
    return train_pure(Family::llama, {1, 2, {"batch.micro=6", zero, seed}}, wide, 3);
  };
  const Outcome zero0 = run("parallel.zero=0", "run.seed=7");
  require_same(zero0, run("parallel.zero=3", "run.seed=7"));
  CHECK(run("parallel.zero=0", "run.seed=8").losses != zero0.losses);
}

// A weight's random bits depend on its position in the whole tensor. AdamW's first step hardly depends on the rounding
// of sums; if layouts had different bits, a third of the weights would differ.
TEST_CASE("without masters, weights are rounded by the same random bits on every layout") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const Outcome one = train_pure(family, {1, 1, {"batch.micro=12"}}, wide, 1);
    for (const PureLayout& layout : {PureLayout{1, 3, {"batch.micro=4", "parallel.zero=3"}},
                                     {2, 2, {"batch.micro=12"}},
                                     {2, 4, {"batch.micro=6", "parallel.zero=1", "parallel.sequence=true"}},
                                     {6, 6, {"batch.micro=12"}}}) {
      const double share = share_differing(one, train_pure(family, layout, wide, 1));
      fmt::print("{}: {:.2f}% of the weights differ\n", layout.name(), 100 * share);
      INFO(layout.name());
      CHECK(share < 0.02);
    }
  }
}

// With one key for all tensors, or that of the initial weights, layouts would agree as well.
TEST_CASE("without masters, every tensor is rounded by random bits of its own, and by others with every seed") {
  Keys keys;
  size_t expected = 0;
  const Wrapping recording{
      .backend = [&](int64_t, Backend& inner) { return std::make_unique<KeyRecorder>(inner, keys); }};
  for (const char* seed : {"run.seed=7", "run.seed=8"}) {
    const RunConfig config = pure_config(Family::gpt2, {1, 1, {"batch.micro=12", seed}}, wide);
    on_ranks(config, 1, nullptr, recording, [&](RankContext& rank) {
      RandomBatches batches(config);
      rank.step.run(1e-3, batches);
      for (const TensorSpec& tensor : rank.step.spec().tensors) {
        const PhiloxKey initial = tensor_key(tensor, config.run.seed, RandomUse::initial_weights);
        keys.emplace(initial.k0, initial.k1);
        expected += is_norm(tensor.name) ? 1 : 2;
      }
    });
  }
  CHECK(keys.size() == expected);
}

TEST_CASE("without masters, initial weights are rounded to nearest, and norms are not") {
  const auto initial = [](bool pure, GlobalState& state) {
    const PureLayout of_pure{1, 1, {"batch.micro=12"}};
    const PureLayout of_exact{1, 1, {"batch.micro=12", "precision.compute=fp32", "precision.gradients=null"}};
    const RunConfig config = pure_config(Family::gpt2, pure ? of_pure : of_exact, wide);
    on_ranks(config, 1, nullptr, {}, [&](RankContext& rank) {
      for (const StateSlice& piece : rank.step.state()) {
        const std::string& name = rank.step.spec().tensors[static_cast<size_t>(piece.tensor)].name;
        REQUIRE((piece.narrow_weight != nullptr) == (pure && !is_norm(name)));
        for (int64_t i = 0; i < piece.count(); ++i)
          state[name].push_back(piece.weight != nullptr ? piece.weight[i] : to_float(piece.narrow_weight[i]));
      }
    });
  };
  GlobalState exact, rounded;
  initial(false, exact);
  initial(true, rounded);
  for (auto& [name, values] : exact) {
    INFO(name);
    for (float& value : values) value = to_float(to_bf16(value));
    CHECK(same_bits(values, rounded.at(name)));
  }
}

// Neighbours of a weight of 0.02 are 2^-13 = 1.2e-4 apart; a step moves it by 4e-6.
TEST_CASE("without masters, training goes on where rounding to nearest would stall") {
  const auto config = [](const char* compute) {
    return small_config(Family::gpt2,
                        {compute, "precision.residual=fp32", "optimizer.weight_decay=0", "model.bias=false"});
  };
  constexpr double learning_rate = 4e-6;
  constexpr int steps = 100;
  const Wrapping nearest{.backend = [](int64_t, Backend& inner) { return std::make_unique<RoundsToNearest>(inner); }};
  const double with_masters = fall_of_loss(config("precision.compute=bf16"), learning_rate, steps);
  const double stochastic = fall_of_loss(config("precision.compute=bf16-pure"), learning_rate, steps);
  const double stalled = fall_of_loss(config("precision.compute=bf16-pure"), learning_rate, steps, nearest);
  fmt::print("the loss falls by {:.4f} with masters, {:.4f} without, {:.4f} rounded to nearest\n", with_masters,
             stochastic, stalled);
  CHECK(with_masters > 0.02);
  CHECK(stochastic == Approx(with_masters).epsilon(0.15));
  CHECK(stalled < 0.3 * with_masters);
}

TEST_CASE("without masters, a step that is not finite changes no bit, on no rank") {
  require_unchanged_by_infinity(wide);
}

}  // namespace test_pure
