// Results on one rank that must be equal to the bit (src/train/README.md), and results equal up to rounding.
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"

namespace test_same_results {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

// Weights and moments of every tensor, and the losses on the way.
struct Outcome {
  std::map<std::string, std::vector<float>> state;
  std::vector<double> losses, norms;
};

Outcome outcome_of(TrainingStep& step) {
  Outcome outcome;
  for (const auto& tensor : step.state()) {
    const std::string& name = step.spec().tensors[static_cast<size_t>(tensor.tensor)].name;
    const auto copy = [&](std::string_view kind, const float* data) {
      outcome.state[std::string(kind) + "/" + name].assign(data, data + tensor.count());
    };
    copy("weight", tensor.weight);
    const StateColumns& columns = step.parameters().columns();
    for (size_t i = 0; i < columns.size(); ++i) copy(columns[i].name, testing::column(tensor, i));
  }
  return outcome;
}

Outcome train_steps(const RunConfig& config, int steps, int threads = 2) {
  const auto backend = make_cpu_backend(threads, config.run.thread_independent);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  RandomBatches batches(config);
  Outcome losses;
  for (int i = 0; i < steps; ++i) {
    const StepResult result = step.run(1e-3, batches);
    losses.losses.push_back(result.loss);
    losses.norms.push_back(result.grad_norm);
  }
  Outcome outcome = outcome_of(step);
  outcome.losses = losses.losses;
  outcome.norms = losses.norms;
  return outcome;
}

void require_same_bits(const Outcome& a, const Outcome& b) {
  for (const auto& [name, values] : a.state) {
    INFO(name);
    REQUIRE(std::memcmp(values.data(), b.state.at(name).data(), values.size() * sizeof(float)) == 0);
  }
  REQUIRE(a.losses == b.losses);
  REQUIRE(a.norms == b.norms);
}

// Returns the first moments after one step from a general state (ten steps), with fresh moments and equal weights:
// exp_avg is (1 - beta1) times the clipped gradient.
std::map<std::string, std::vector<float>> first_moments(const RunConfig& config, const Outcome& start) {
  const auto backend = make_cpu_backend(2);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  for (const auto& tensor : step.state()) {
    const auto& weight = start.state.at("weight/" + step.spec().tensors[static_cast<size_t>(tensor.tensor)].name);
    std::copy(weight.begin(), weight.end(), tensor.weight);
  }
  step.weights_changed();
  RandomBatches batches(config, 1000);
  step.run(1e-3, batches);
  return outcome_of(step).state;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(a[i]) * a[i];
  }
  return std::sqrt(difference / norm);
}

double l2(const std::vector<float>& a) {
  double sum = 0;
  for (const float value : a) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("every recompute mode gives the same bits") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const char* precision : {"fp32", "bf16"}) {
      INFO(precision);
      for (const bool qk_norm : {false, true}) {
        INFO("QK-norm " << qk_norm);
        const std::vector<std::string> base = {"model.dropout=0.1", "batch.micro=2",
                                               std::string("precision.compute=") + precision,
                                               std::string("model.qk_norm=") + (qk_norm ? "true" : "false")};
        const Outcome none = train_steps(small_config(family, base), 3);
        for (const char* mode : {"selective", "ffn", "block", "every_nth"}) {
          INFO(mode);
          std::vector<std::string> overrides = base;
          overrides.push_back(std::string("memory.recompute=") + mode);
          if (mode == std::string("every_nth")) overrides.push_back("memory.recompute_interval=2");
          require_same_bits(none, train_steps(small_config(family, overrides), 3));
        }
      }
    }
  }
}

TEST_CASE("the same run twice gives the same bits, another seed does not") {
  const RunConfig config = small_config(Family::gpt2, {"model.dropout=0.1"});
  const Outcome once = train_steps(config, 2);
  require_same_bits(once, train_steps(config, 2));
  const Outcome other = train_steps(small_config(Family::gpt2, {"model.dropout=0.1", "run.seed=8"}), 2);
  CHECK(other.losses != once.losses);
}

TEST_CASE("run.thread_independent gives the same bits on 1, 2 and 3 threads") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const char* precision : {"fp32", "bf16"}) {
      INFO(precision);
      // Hundreds of rows and features, so that every linear has several parts.
      const RunConfig config =
          small_config(family, {"run.thread_independent=true", "model.dropout=0.1", "model.sequence_length=128",
                                "model.vocab_size=520", std::string("precision.compute=") + precision});
      const Outcome two = train_steps(config, 3);
      require_same_bits(two, train_steps(config, 3, 1));
      require_same_bits(two, train_steps(config, 3, 3));
    }
  }
}

TEST_CASE("micro-batches of 1, 2 and 4 agree by the first-moment test") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const std::vector<std::string> base = {"model.dropout=0.1"};
    const auto with_micro = [&](const char* micro) {
      std::vector<std::string> overrides = base;
      overrides.push_back(std::string("batch.micro=") + micro);
      return small_config(family, overrides);
    };
    const Outcome start = train_steps(with_micro("4"), 10);
    const auto whole = first_moments(with_micro("4"), start);
    for (const char* micro : {"1", "2"}) {
      const auto parts = first_moments(with_micro(micro), start);
      double largest = 0;
      for (const auto& [name, values] : whole)
        largest = std::max(largest, name.starts_with("exp_avg/") ? l2(values) : 0);
      for (const auto& [name, values] : whole) {
        if (!name.starts_with("exp_avg/")) continue;
        INFO(name << " micro " << micro);
        CHECK(relative_distance(values, parts.at(name)) < 2e-5);
      }
    }
    const Outcome four = train_steps(with_micro("4"), 20);
    const Outcome one = train_steps(with_micro("1"), 20);
    for (size_t i = 0; i < 20; ++i) {
      CHECK(one.losses[i] == Approx(four.losses[i]).epsilon(1e-5));
      CHECK(one.norms[i] == Approx(four.norms[i]).epsilon(i < 5 ? 1e-5 : 1e-4));
    }
  }
}

TEST_CASE("training lowers the loss in every precision") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const std::vector<std::string>& precision : {std::vector<std::string>{"precision.compute=fp32"},
                                                      {"precision.compute=bf16"},
                                                      {"precision.compute=bf16", "precision.residual=fp32"}}) {
      const Outcome outcome = train_steps(small_config(family, precision), 60);
      INFO(precision.back());
      CHECK(outcome.losses.front() == Approx(std::log(101.0)).epsilon(0.02));
      CHECK(outcome.losses.back() < 0.85 * outcome.losses.front());
    }
  }
}

}  // namespace test_same_results
