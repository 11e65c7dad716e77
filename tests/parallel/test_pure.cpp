// bf16 weights without masters (precision.compute "bf16-pure"): the same bits over layouts, and what they learn.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "model/spec/init.h"
#include "model_fixture.h"
#include "ranks.h"
#include "wrappers.h"

namespace test_pure {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

using Overrides = std::vector<std::string>;

struct Layout {
  int64_t tensor, data;
  Overrides overrides;
};

RunConfig config_of(Family family, const Layout& layout) {
  Overrides overrides = {"model.num_heads=6",           "model.num_kv_heads=2",
                         "model.hidden_size=48",        "model.ffn_hidden_size=60",
                         "model.sequence_length=20",    "batch.global=12",
                         "precision.compute=bf16-pure", fmt::format("parallel.tensor={}", layout.tensor)};
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  return small_config(family, overrides, layout.tensor * layout.data);
}

Outcome train(Family family, const Layout& layout, int steps, const Wrapping& wrapping = {}) {
  return train_on_ranks(config_of(family, layout), layout.tensor * layout.data, steps, nullptr, 0, wrapping);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void require_same_bits(const Outcome& a, const Outcome& b) {
  REQUIRE(a.torn + b.torn == "");
  for (const auto& [name, values] : a.state) {
    INFO(name);
    REQUIRE(same_bits(values, b.state.at(name)));
  }
  REQUIRE(a.losses == b.losses);
  REQUIRE(a.norms == b.norms);
}

bool is_norm(const std::string& name) { return name.find("norm") != std::string::npos; }

// The share of the bf16 weights that differ.
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

// What training without masters would be with rounding to nearest.
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

// The keys of what is rounded stochastically.
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

// The loss of every step at a learning rate.
std::vector<double> losses(const RunConfig& config, double learning_rate, int steps, const Wrapping& wrapping = {}) {
  std::vector<double> result;
  on_ranks(config, 1, nullptr, wrapping, [&](RankContext& rank) {
    for (int i = 0; i < steps; ++i) {
      RandomBatches batches(config);  // the same samples
      result.push_back(rank.step.run(learning_rate, batches).loss);
    }
  });
  return result;
}

}  // namespace

TEST_CASE("without masters: ZeRO 0 and 1, and 2 and 3, give the same bits, with every recompute mode") {
  for (const auto& [family, tensor, data, sequence] :
       {std::tuple{Family::gpt2, 1, 3, false}, {Family::gpt2, 2, 2, true}, {Family::llama, 2, 2, false}}) {
    INFO("tensor " << tensor << " data " << data);
    const auto run = [&, family = family, tensor = tensor, data = data, sequence = sequence](const Overrides& more) {
      Overrides overrides = {"model.dropout=0.1", "batch.micro=2"};
      if (sequence) overrides.push_back("parallel.sequence=true");
      overrides.insert(overrides.end(), more.begin(), more.end());
      return train(family, {tensor, data, overrides}, 3);
    };
    const Outcome zero0 = run({"parallel.zero=0"}), zero2 = run({"parallel.zero=2"});
    require_same_bits(zero0, run({"parallel.zero=1", "memory.recompute=block"}));
    require_same_bits(zero2, run({"parallel.zero=3", "memory.recompute=every_nth", "memory.recompute_interval=2"}));
    CHECK(zero0.losses.front() == zero2.losses.front());
  }
}

TEST_CASE("without masters, one micro-batch a step: the same weights with every ZeRO stage, seed by seed") {
  const auto run = [&](const char* zero, const char* seed) {
    return train(Family::llama, {1, 2, {"batch.micro=6", zero, seed}}, 3);
  };
  const Outcome zero0 = run("parallel.zero=0", "run.seed=7");
  require_same_bits(zero0, run("parallel.zero=3", "run.seed=7"));
  CHECK(run("parallel.zero=0", "run.seed=8").losses != zero0.losses);
}

// A weight's random bits are those of its place in the whole tensor. AdamW's first step hardly depends on how sums are
// rounded; had layouts other bits, a third of the weights would differ.
TEST_CASE("without masters, weights are rounded by the same random bits on every layout") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const Outcome one = train(family, {1, 1, {"batch.micro=12"}}, 1);
    for (const Layout& layout : {Layout{1, 3, {"batch.micro=4", "parallel.zero=3"}},
                                 {2, 1, {"batch.micro=12"}},
                                 {2, 2, {"batch.micro=6", "parallel.zero=1", "parallel.sequence=true"}},
                                 {6, 1, {"batch.micro=12"}}}) {
      const double share = share_differing(one, train(family, layout, 1));
      fmt::print("tensor {} data {}: {:.2f}% of the weights differ\n", layout.tensor, layout.data, 100 * share);
      INFO("tensor " << layout.tensor << " data " << layout.data);
      CHECK(share < 0.02);
    }
  }
}

// With one key for all, or that of the initial weights, layouts would agree all the same.
TEST_CASE("without masters, every tensor is rounded by random bits of its own, and by others with every seed") {
  Keys keys;
  size_t expected = 0;
  const Wrapping recording{
      .backend = [&](int64_t, Backend& inner) { return std::make_unique<KeyRecorder>(inner, keys); }};
  for (const char* seed : {"run.seed=7", "run.seed=8"}) {
    const RunConfig config = config_of(Family::gpt2, {1, 1, {"batch.micro=12", seed}});
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
    const char* const compute = pure ? "precision.compute=bf16-pure" : "precision.compute=fp32";
    const RunConfig config = config_of(Family::gpt2, {1, 1, {compute, "batch.micro=12"}});
    on_ranks(config, 1, nullptr, {}, [&](RankContext& rank) {
      for (const StatePiece& piece : rank.step.state()) {
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

// A weight of 0.02 has neighbours at 2^-13, 1.2e-4; a step moves it by 4e-6.
TEST_CASE("without masters, training goes on where rounding to nearest would stall") {
  const auto config = [](const char* compute) {
    return small_config(Family::gpt2,
                        {compute, "precision.residual=fp32", "optimizer.weight_decay=0", "model.bias=false"});
  };
  constexpr double learning_rate = 4e-6;
  constexpr int steps = 100;
  const auto fall = [](const std::vector<double>& losses) { return losses.front() - losses.back(); };
  const Wrapping nearest{.backend = [](int64_t, Backend& inner) { return std::make_unique<RoundsToNearest>(inner); }};
  const double with_masters = fall(losses(config("precision.compute=bf16"), learning_rate, steps));
  const double stochastic = fall(losses(config("precision.compute=bf16-pure"), learning_rate, steps));
  const double stalled = fall(losses(config("precision.compute=bf16-pure"), learning_rate, steps, nearest));
  fmt::print("the loss falls by {:.4f} with masters, {:.4f} without, {:.4f} rounded to nearest\n", with_masters,
             stochastic, stalled);
  CHECK(with_masters > 0.02);
  CHECK(stochastic == Approx(with_masters).epsilon(0.15));
  CHECK(stalled < 0.3 * with_masters);
}

TEST_CASE("without masters, a step that is not finite changes no bit, on no rank") {
  for (const int zero : {0, 1, 2, 3}) {
    INFO("zero " << zero);
    const Layout layout{1, 2, {"batch.micro=2", fmt::format("parallel.zero={}", zero)}};
    const RunConfig config = config_of(Family::gpt2, layout);
    on_ranks(config, 2, nullptr, {}, [&](RankContext& rank) {
      const auto bits = [&] {
        std::vector<float> values;
        for (const StatePiece& piece : rank.step.state()) {
          for (int64_t i = 0; i < piece.count(); ++i) {
            values.push_back(piece.weight != nullptr ? piece.weight[i] : to_float(piece.narrow_weight[i]));
            values.insert(values.end(), {column(piece, 0)[i], column(piece, 1)[i]});
          }
        }
        return values;
      };
      RandomBatches batches(config, 0, rank.groups.sample_rank(), 2);
      REQUIRE_FALSE(rank.step.run(1e-3, batches).skipped);
      for (const StatePiece& piece : rank.step.state()) {
        const TensorSpec& tensor = rank.step.spec().tensors[static_cast<size_t>(piece.tensor)];
        if (tensor.name == "blocks.1.ffn.in.weight")
          piece.narrow_weight[0] = to_bf16(std::numeric_limits<float>::infinity());
      }
      rank.step.weights_changed();
      const std::vector<float> before = bits();
      const StepResult result = rank.step.run(1e-3, batches);
      REQUIRE(result.skipped);
      REQUIRE(result.updates == 1);
      REQUIRE(same_bits(before, bits()));
    });
  }
}

}  // namespace test_pure
