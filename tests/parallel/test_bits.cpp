// Results over ranks that must be equal to the bit (src/train/README.md), and losses and norms along a run.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "differences.h"
#include "model_fixture.h"
#include "same_outcomes.h"
#include "wrappers.h"

namespace test_bits {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

struct MeshSizes {
  int64_t tensor, data;
  bool sequence;

  int64_t world_size() const { return tensor * data; }
};

RunConfig config_of(Family family, const MeshSizes& mesh, Overrides overrides) {
  const Overrides sizes = {"model.num_heads=6",        "model.num_kv_heads=2",     "model.hidden_size=48",
                           "model.ffn_hidden_size=60", "model.sequence_length=20", "batch.global=12"};
  overrides.insert(overrides.begin(), sizes.begin(), sizes.end());
  overrides.push_back(fmt::format("parallel.tensor={}", mesh.tensor));
  if (mesh.sequence) overrides.push_back("parallel.sequence=true");
  return small_config(family, overrides, mesh.world_size());
}

Outcome train(Family family, const MeshSizes& mesh, const Overrides& overrides, int steps) {
  return train_on_ranks(config_of(family, mesh, overrides), mesh.world_size(), steps);
}

Overrides with(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

constexpr MeshSizes meshes[] = {{1, 2, false}, {1, 3, false}, {2, 2, false}, {2, 2, true}};
constexpr const char* precisions[] = {"precision.compute=fp32", "precision.compute=bf16"};

// `run` adds the overrides to its own.
template <typename Run>
void check_zero_stages(const Run& run) {
  const Outcome zero0 = run({"parallel.zero=0"});
  require_same(zero0, run({"parallel.zero=1", "memory.recompute=block"}));
  const Outcome zero2 = run({"parallel.zero=2"});
  require_same(zero2, run({"parallel.zero=3"}));
  require_same(zero2, run({"parallel.zero=3", "memory.recompute=every_nth", "memory.recompute_interval=2"}));
  CHECK(zero0.losses.front() == zero2.losses.front());
}

}  // namespace

TEST_CASE("ZeRO 0 and 1, and 2 and 3, give the same bits, with every recompute mode", "[long]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const MeshSizes& mesh : meshes) {
      for (const char* precision : precisions) {
        INFO("tensor " << mesh.tensor << " data " << mesh.data << " sequence " << mesh.sequence << " " << precision);
        const Overrides base = {precision, "model.dropout=0.1", "batch.micro=2"};
        const auto run = [&](const Overrides& more) { return train(family, mesh, with(base, more), 3); };
        check_zero_stages(run);
      }
    }
  }
}

TEST_CASE("FP8 linears: ZeRO 0 and 1, and 2 and 3, give the same bits, with every recompute mode") {
  const Overrides base = {
      "model.ffn_hidden_size=64", "model.sequence_length=16", "model.dropout=0.1",    "batch.micro=2",
      "run.device=auto",          "precision.compute=bf16",   "precision.linears=fp8"};
  const auto run = [&](const Overrides& more) { return train(Family::llama, {1, 2, false}, with(base, more), 2); };
  check_zero_stages(run);
}

namespace {

// Amax of every tensor that a rank quantized, in order.
using RankScales = std::vector<std::vector<float>>;

class ScaleRecorder final : public ForwardingBackend {
 public:
  ScaleRecorder(Backend& inner, std::vector<float>& scales) : ForwardingBackend(inner), scales_(scales) {}

  using ForwardingBackend::run;
  void run(const Quantize& op) override {
    const float* const parts = op.to.amax.as<float>();
    scales_.push_back(*std::max_element(parts, parts + op.to.amax.cols));
    inner_.run(op);
  }

 private:
  std::vector<float>& scales_;
};

template <typename Recorder>
Wrapping recording(RankScales& scales, int64_t world_size) {
  scales.resize(static_cast<size_t>(world_size));
  return {.backend = [&scales](int64_t rank, Backend& inner) -> std::unique_ptr<Backend> {
    return std::make_unique<Recorder>(inner, scales[static_cast<size_t>(rank)]);
  }};
}

// Checks that all ranks have the same scales, near those of one rank. `has_replicas`: ranks with replicas of a key head
// have parts of its gradient, with another amax than one rank.
void check_scales(const RankScales& of_many, const RankScales& of_one, bool has_replicas) {
  for (const std::vector<float>& of_rank : of_many) {
    CHECK(of_rank == of_many.front());
    REQUIRE(of_rank.size() == of_one.front().size());
    if (has_replicas) continue;
    for (size_t i = 0; i < of_rank.size(); ++i) CHECK(of_rank[i] == Approx(of_one.front()[i]).epsilon(0.1));
  }
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / size);
}

}  // namespace

// Sums of the ranks' parts are rounded to bf16 once more. A few in a hundred numbers lie so close to the middle
// between two FP8 numbers that this rounding moves them to the other one, an error about as large as the formats' own,
// 2.6% (E4M3) and 5.2% (E5M2) per product. Scales are powers of two, so products would hardly show that a rank has a
// scale of its own: the scales are checked as well.
TEST_CASE("FP8 factors: a tensor has the scale of all of it, however many tensor ranks share it", "[long]") {
  const Overrides base = {"model.num_heads=4",        "model.hidden_size=64",  "model.ffn_hidden_size=128",
                          "model.sequence_length=16", "model.num_layers=2",    "batch.global=4",
                          "run.device=auto",          "precision.compute=bf16"};
  struct Case {
    Overrides overrides;
    size_t tensors;  // tensors per linear: weight, input and gradient, or the latter two
  };
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const auto& [overrides, tensors] :
         {Case{{"precision.linears=fp8"}, 3}, Case{{"precision.linears=fp8", "model.dropout=0.1"}, 3},
          Case{{"precision.weight_gradients=fp8"}, 2}}) {
      const Overrides all = with(base, overrides);
      const GlobalState start = train_on_ranks(config_of(family, {1, 1, false}, all), 1, 3).state;
      const auto run = [&](const MeshSizes& mesh, RankScales& scales) {
        const RunConfig config = config_of(family, mesh, all);
        return train_on_ranks(config, mesh.world_size(), 1, &start, 100,
                              recording<ScaleRecorder>(scales, mesh.world_size()));
      };
      RankScales of_one;
      const Outcome one = run({1, 1, false}, of_one);
      REQUIRE(of_one.front().size() == 2 * 4 * tensors);
      for (const MeshSizes& mesh : {MeshSizes{2, 1, false}, {2, 1, true}, {4, 1, true}}) {
        INFO((family == Family::gpt2 ? "gpt2" : "llama") << " tensor " << mesh.tensor << " sequence " << mesh.sequence);
        RankScales of_many;
        const Outcome many = run(mesh, of_many);
        REQUIRE(many.torn.empty());
        check_scales(of_many, of_one, mesh.tensor > config_of(family, mesh, base).model.num_kv_heads);
        CHECK(std::abs(many.losses[0] / one.losses[0] - 1) < 1e-3);
        for (const auto& [name, values] : one.state) {
          if (!name.starts_with("exp_avg/")) continue;
          INFO(name);
          CHECK(distance(many.state.at(name), values) < 0.2);
        }
      }
    }
  }
}

namespace {

// Keeps the amaxes on which the ranks have agreed in each step.
class AmaxRecorder final : public ForwardingBackend {
 public:
  AmaxRecorder(Backend& inner, std::vector<float>& amaxes) : ForwardingBackend(inner), amaxes_(amaxes) {}

  using ForwardingBackend::run;
  void run(const RollAmaxes& op) override {
    amaxes_.insert(amaxes_.end(), op.amaxes.as<const float>(), op.amaxes.as<const float>() + op.amaxes.cols);
    inner_.run(op);
  }

 private:
  std::vector<float>& amaxes_;
};

}  // namespace

TEST_CASE("delayed FP8 scales: all ranks of any layout agree on the amaxes that one rank finds", "[long]") {
  const Overrides all = {"model.num_heads=4",        "model.hidden_size=64",   "model.ffn_hidden_size=128",
                         "model.sequence_length=16", "model.num_layers=2",     "batch.global=4",
                         "run.device=auto",          "precision.compute=bf16", "precision.linears=fp8",
                         "precision.amax_history=2", "batch.micro=1"};
  for (const Family family : {Family::gpt2, Family::llama}) {
    const GlobalState start = train_on_ranks(config_of(family, {1, 1, false}, all), 1, 3).state;
    const auto run = [&](const MeshSizes& mesh, RankScales& amaxes) {
      const RunConfig config = config_of(family, mesh, all);
      return train_on_ranks(config, mesh.world_size(), 2, &start, 100,
                            recording<AmaxRecorder>(amaxes, mesh.world_size()));
    };
    RankScales of_one;
    const Outcome one = run({1, 1, false}, of_one);
    REQUIRE(of_one.front().size() == 2 * 2 * 2 * 4);
    for (const MeshSizes& mesh : {MeshSizes{1, 2, false}, {2, 1, false}, {2, 1, true}, {2, 2, true}}) {
      INFO((family == Family::gpt2 ? "gpt2" : "llama")
           << " tensor " << mesh.tensor << " data " << mesh.data << " sequence " << mesh.sequence);
      RankScales of_many;
      const Outcome many = run(mesh, of_many);
      REQUIRE(many.torn.empty());
      check_scales(of_many, of_one, mesh.tensor > config_of(family, mesh, all).model.num_kv_heads);
      for (size_t i = 0; i < 2; ++i) CHECK(std::abs(many.losses[i] / one.losses[i] - 1) < 2e-3);
    }
  }
}

TEST_CASE("where states differ is told by name, element and values") {
  const GlobalState a = {{"b", {1, 2, 3}}, {"c", {0.5F}}};
  CHECK(first_difference(a, a) == "");
  CHECK(first_difference(a, {{"b", {1, 2, 3}}, {"c", {0.25F}}}) == "c: element 0 of 1 and 1: 0.5 and 0.25");
  CHECK(first_difference(a, {{"b", {1, 2}}, {"c", {0.5F}}}) == "b: element 2 of 3 and 2: 3 and none");
  CHECK(first_difference(a, {{"b", {1, 2, 3}}}) == "c: only in the first");
  CHECK(first_difference({{"b", {1, 2, 3}}}, a) == "c: only in the second");
}

TEST_CASE("with one micro-batch a step all ZeRO stages give the same bits") {
  for (const MeshSizes& mesh : meshes) {
    const Overrides base = {fmt::format("batch.micro={}", 12 / mesh.data), "model.dropout=0.1"};
    const Outcome zero0 = train(Family::llama, mesh, with(base, {"parallel.zero=0"}), 3);
    const Outcome zero3 = train(Family::llama, mesh, with(base, {"parallel.zero=3"}), 3);
    CHECK(first_difference(zero0.state, zero3.state) == "");
  }
}

// Each of two ranks rounds its part to bf16 (8 significant bits), and the sum is rounded once more: at most 2^-9 of
// each of the three. The first moment is the first step's gradient times 1 - beta1.
TEST_CASE("gradients summed in bf16 are off by their rounding, and the same for every ZeRO stage", "[long]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const MeshSizes& mesh : {MeshSizes{1, 2, false}, MeshSizes{2, 2, true}}) {
      INFO("tensor " << mesh.tensor << " data " << mesh.data);
      const Overrides base = {"batch.micro=6", "optimizer.clip_norm=0"};
      const Overrides narrowed = with(base, {"precision.reduce=bf16"});
      const Outcome exact = train(family, mesh, base, 1);
      const Outcome rounded = train(family, mesh, narrowed, 1);
      int64_t differing = 0;
      for (const auto& [name, values] : exact.state) {
        if (!name.starts_with("exp_avg/")) continue;
        INFO(name);
        const std::vector<float>& others = rounded.state.at(name);
        double error = 0, size = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          error += std::pow(others[i] - values[i], 2);
          size += std::pow(values[i], 2);
          differing += others[i] != values[i];
        }
        CHECK(std::sqrt(error) <= 3 * std::ldexp(1.0, -9) * std::sqrt(size) * 2);
      }
      CHECK(differing > 0);
      for (const int zero : {1, 2, 3})
        require_same(rounded, train(family, mesh, with(narrowed, {fmt::format("parallel.zero={}", zero)}), 1));
    }
  }
}

TEST_CASE("the same run over ranks twice gives the same bits, another seed does not", "[long]") {
  for (const char* precision : precisions) {
    const Overrides base = {precision, "model.dropout=0.1", "batch.micro=2", "parallel.zero=3"};
    const MeshSizes mesh{2, 2, true};
    const Outcome once = train(Family::llama, mesh, base, 3);
    require_same(once, train(Family::llama, mesh, base, 3));
    CHECK(train(Family::llama, mesh, with(base, {"run.seed=8"}), 3).losses != once.losses);
  }
}

TEST_CASE("losses and norms along a run agree with those of one rank", "[long]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const Outcome one = train(family, {1, 1, false}, {"batch.micro=12", "model.dropout=0.1"}, 20);
    for (const auto& [mesh, zero] :
         {std::pair{MeshSizes{1, 3, false}, 1}, {MeshSizes{2, 2, true}, 3}, {MeshSizes{6, 1, false}, 0}}) {
      INFO("tensor " << mesh.tensor << " data " << mesh.data << " zero " << zero);
      const Outcome many =
          train(family, mesh, {"batch.micro=2", "model.dropout=0.1", fmt::format("parallel.zero={}", zero)}, 20);
      for (size_t i = 0; i < 20; ++i) {
        CHECK(many.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
        CHECK(many.norms[i] == Approx(one.norms[i]).epsilon(i < 5 ? 1e-5 : 1e-4));
      }
    }
  }
}

TEST_CASE("a validation after a step sums the losses that one rank finds", "[long]") {
  // Returns the loss sum over twelve samples, with the weights after one step.
  const auto validate = [](Family family, const MeshSizes& mesh, const Overrides& overrides) {
    const RunConfig config = config_of(family, mesh, overrides);
    std::vector<double> sums(static_cast<size_t>(mesh.world_size()));
    on_ranks(config, mesh.world_size(), nullptr, {}, [&](RankContext& rank) {
      RandomBatches training(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      rank.step.run(1e-3, training);
      RandomBatches validation(config, 500, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
      const int64_t samples_of_micro_batch = config.batch.micro * mesh.data;
      sums[static_cast<size_t>(rank.groups.rank())] = rank.step.evaluate(12 / samples_of_micro_batch, validation);
    });
    for (const double sum : sums) CHECK(sum == sums.front());
    return sums.front();
  };
  for (const Family family : {Family::gpt2, Family::llama}) {
    const double one = validate(family, {1, 1, false}, {"batch.micro=12"});
    for (const int zero : {0, 1, 2, 3}) {
      for (const MeshSizes& mesh : {MeshSizes{1, 3, false}, MeshSizes{2, 2, true}}) {
        INFO("tensor " << mesh.tensor << " data " << mesh.data << " zero " << zero);
        const Overrides overrides = {"batch.micro=2", fmt::format("parallel.zero={}", zero)};
        CHECK(validate(family, mesh, overrides) == Approx(one).epsilon(1e-6));
      }
    }
  }
}

// The sums over ranks round to bf16 in other places. The bound is one rounding of the residual stream, 2^-9, which the
// mean over tokens reduces.
TEST_CASE("bf16 layouts agree with one rank to bf16's rounding", "[long]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const Outcome one = train(family, {1, 1, false}, {"batch.micro=12", "precision.compute=bf16"}, 20);
    for (const auto& [mesh, zero] :
         {std::pair{MeshSizes{1, 3, false}, 1}, {MeshSizes{2, 2, true}, 3}, {MeshSizes{6, 1, false}, 0}}) {
      INFO("tensor " << mesh.tensor << " data " << mesh.data << " zero " << zero);
      const Outcome many =
          train(family, mesh, {"batch.micro=2", "precision.compute=bf16", fmt::format("parallel.zero={}", zero)}, 20);
      double loss = 0;
      double norm = 0;
      for (size_t i = 0; i < 20; ++i) {
        loss = std::max(loss, std::abs(many.losses[i] / one.losses[i] - 1));
        norm = std::max(norm, std::abs(many.norms[i] / one.norms[i] - 1));
      }
      CHECK(loss < 0x1p-11);
      CHECK(norm < 0x1p-6);
    }
  }
}

}  // namespace test_bits
