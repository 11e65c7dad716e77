// The config's settings for update and dropout reach the ops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"

namespace test_update {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

struct AfterOneStep {
  StepResult result;
  double moment_norm = 0;  // L2 of exp_avg over all tensors
  double evaluated = 0;    // loss sum of the initial weights, by evaluate
  std::map<std::string, std::vector<float>> weights;
};

AfterOneStep one_step(const RunConfig& config) {
  const auto backend = make_cpu_backend(2);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  AfterOneStep after;
  {
    RandomBatches batches(config);
    after.evaluated = step.evaluate(1, batches);
  }
  RandomBatches batches(config);
  after.result = step.run(1e-2, batches);
  double squares = 0;
  for (const auto& tensor : step.state()) {
    after.weights[step.spec().tensors[static_cast<size_t>(tensor.tensor)].name].assign(tensor.weight,
                                                                                       tensor.weight + tensor.count());
    const float* const exp_avg = testing::column(tensor, 0);
    for (int64_t i = 0; i < tensor.count(); ++i) squares += static_cast<double>(exp_avg[i]) * exp_avg[i];
  }
  after.moment_norm = std::sqrt(squares);
  return after;
}

std::map<std::string, std::vector<float>> initial_weights(const RunConfig& config) {
  const auto backend = make_cpu_backend(2);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  std::map<std::string, std::vector<float>> weights;
  for (const auto& tensor : step.state())
    weights[step.spec().tensors[static_cast<size_t>(tensor.tensor)].name].assign(tensor.weight,
                                                                                 tensor.weight + tensor.count());
  return weights;
}

// Returns the largest distance of elements.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

}  // namespace

TEST_CASE("weight decay moves matrices by its share, and norms and biases not at all") {
  const AfterOneStep without = one_step(small_config(Family::gpt2, {"optimizer.weight_decay=0"}));
  const AfterOneStep with = one_step(small_config(Family::gpt2, {"optimizer.weight_decay=0.5"}));
  const ModelSpec spec = make_spec(small_config(Family::gpt2).model);
  for (const TensorSpec& tensor : spec.tensors) {
    INFO(tensor.name);
    const auto& a = without.weights.at(tensor.name);
    const auto& b = with.weights.at(tensor.name);
    const bool same = std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    CHECK(same == (tensor.shape.size() == 1));
  }
}

TEST_CASE("the gradient norm is clipped to what the config says") {
  const AfterOneStep free = one_step(small_config(Family::gpt2, {"optimizer.clip_norm=0"}));
  const AfterOneStep clipped = one_step(small_config(Family::gpt2, {"optimizer.clip_norm=0.01"}));
  CHECK(free.result.grad_norm > 0.1);
  CHECK(clipped.result.grad_norm == free.result.grad_norm);
  // From zero moments, exp_avg is (1 - beta1) times the clipped gradient.
  CHECK(free.moment_norm == Approx(0.1 * free.result.grad_norm).epsilon(1e-4));
  CHECK(clipped.moment_norm == Approx(0.1 * 0.01).epsilon(1e-4));
}

TEST_CASE("the first moment of each optimizer begins with its share of the clipped gradient") {
  const auto norms = [](const std::vector<std::string>& overrides) {
    const AfterOneStep after = one_step(small_config(Family::gpt2, overrides));
    return after.moment_norm / after.result.grad_norm;
  };
  CHECK(norms({"optimizer.type=sgd", "optimizer.clip_norm=0"}) == Approx(1).epsilon(1e-4));
  CHECK(norms({"optimizer.type=lion", "optimizer.clip_norm=0"}) == Approx(0.01).epsilon(1e-4));
  CHECK(norms({"optimizer.type=lion", "optimizer.clip_norm=0", "optimizer.betas=[0.9,0.8]"}) ==
        Approx(0.2).epsilon(1e-4));
}

TEST_CASE("what the config says about an optimizer reaches its steps") {
  const auto weights = [](const std::vector<std::string>& overrides) {
    return one_step(small_config(Family::gpt2, overrides)).weights.at("embedding.token");
  };
  const std::vector<float> sgd = weights({"optimizer.type=sgd"});
  CHECK((sgd != weights({"optimizer.type=sgd", "optimizer.nesterov=true"})));
  CHECK((weights({"optimizer.type=sgd", "optimizer.nesterov=true"}) !=
         weights({"optimizer.type=sgd", "optimizer.nesterov=true", "optimizer.momentum=0.5"})));
  CHECK((sgd != weights({"optimizer.type=sgd", "optimizer.weight_decay=0.5"})));
  CHECK((weights({"optimizer.type=lion"}) != weights({"optimizer.type=lion", "optimizer.weight_decay=0.5"})));
  CHECK((weights({"optimizer.type=lion"}) != sgd));
  const std::vector<float> lars = weights({"optimizer.type=lars"});
  CHECK((lars != weights({"optimizer.type=lars", "optimizer.trust_coefficient=0.01"})));
  CHECK((lars != weights({"optimizer.type=lars", "optimizer.weight_decay=0.5"})));
  CHECK((weights({"optimizer.type=lamb"}) != weights({"optimizer.type=lamb", "optimizer.eps=1e-3"})));
  CHECK((weights({"optimizer.type=lamb"}) != weights({"optimizer.type=lamb", "optimizer.weight_decay=0.5"})));
}

// In the first step LAMB moves each matrix by the learning rate times its norm, and LARS, without decay, by that times
// the trust coefficient. Norms and biases take the steps of AdamW and SGD.
TEST_CASE("LAMB and LARS move each matrix by a share of its norm") {
  const RunConfig config = small_config(Family::gpt2);
  const std::vector<std::string> still = {"optimizer.clip_norm=0", "optimizer.weight_decay=0"};
  const auto after = [&](const std::string& type, std::vector<std::string> more) {
    more.insert(more.end(), still.begin(), still.end());
    more.push_back("optimizer.type=" + type);
    return one_step(small_config(Family::gpt2, more)).weights;
  };
  const auto initial = initial_weights(config);
  const auto adamw = after("adamw", {"optimizer.eps=1e-6", "optimizer.betas=[0.9,0.999]"}), sgd = after("sgd", {});
  const auto lamb = after("lamb", {}), lars = after("lars", {"optimizer.trust_coefficient=0.5"});
  const auto moved = [](const std::vector<float>& from, const std::vector<float>& to) {
    double squares = 0, of_change = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      squares += static_cast<double>(from[i]) * from[i];
      of_change += std::pow(static_cast<double>(to[i]) - static_cast<double>(from[i]), 2);
    }
    return std::sqrt(of_change / squares);
  };
  for (const TensorSpec& tensor : make_spec(config.model).tensors) {
    INFO(tensor.name);
    const std::vector<float>& before = initial.at(tensor.name);
    if (tensor.decay) {
      CHECK(moved(before, lamb.at(tensor.name)) == Approx(1e-2).epsilon(1e-4));
      CHECK(moved(before, lars.at(tensor.name)) == Approx(0.5e-2).epsilon(1e-4));
    } else {
      CHECK(distance(lamb.at(tensor.name), adamw.at(tensor.name)) < 1e-7);
      CHECK(distance(lars.at(tensor.name), sgd.at(tensor.name)) < 1e-7);
    }
  }
}

TEST_CASE("each dropout rate changes the training loss, none the evaluation's") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const AfterOneStep none = one_step(small_config(family));
    const AfterOneStep residual = one_step(small_config(family, {"model.residual_dropout=0.5"}));
    const AfterOneStep attention = one_step(small_config(family, {"model.attention_dropout=0.5"}));
    CHECK(residual.result.loss != none.result.loss);
    CHECK(attention.result.loss != none.result.loss);
    CHECK(residual.result.loss != attention.result.loss);
    CHECK(residual.evaluated == none.evaluated);
    CHECK(attention.evaluated == none.evaluated);
  }
}

TEST_CASE("each choice of the model gives another function") {
  const auto loss_with = [](Family family, const std::vector<std::string>& overrides) {
    return one_step(small_config(family, overrides)).evaluated;
  };
  CHECK(loss_with(Family::llama, {"model.rope_theta=100"}) != loss_with(Family::llama, {}));
  // The two forms of GELU differ by at most 1e-3, and not visibly near zero.
  CHECK(loss_with(Family::gpt2, {"model.activation=gelu", "model.init_std=0.5"}) !=
        loss_with(Family::gpt2, {"model.init_std=0.5"}));
  CHECK(loss_with(Family::gpt2, {"model.norm_eps=0.1"}) != loss_with(Family::gpt2, {}));
}

}  // namespace test_update
