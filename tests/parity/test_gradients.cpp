// Gradients of the whole model against central differences of its own loss, tensor by tensor.
#include <cmath>
#include <string>
#include <vector>

#include "base/philox.h"
#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"

namespace test_gradients {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

struct Check {
  std::string tensor;
  double by_gradient;    // directional derivative, from the gradient
  double by_difference;  // the same from the loss
  double noise;          // error of by_difference, from f32 rounding of the loss
};

// Checks the derivative of the loss along the gradient itself, scaled to unit length. This is the largest possible
// signal, so that a lost or doubled part of a gradient shows.
std::vector<Check> check_gradients(const RunConfig& config) {
  const auto backend = make_cpu_backend(2);
  testing::OneRank rank(config);
  TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
  step.initialize();
  {
    RandomBatches batches(config);
    // Moves to a general point: biases away from zero, norms away from one.
    for (int i = 0; i < 10; ++i) step.run(1e-2, batches);
  }
  // Uses a training step, so that dropout is part of the function; its masks depend on sample numbers only. A rate of 0
  // changes no weight.
  const auto loss = [&] {
    RandomBatches batches(config, 500);
    return step.run(0, batches).loss;
  };
  const double here = loss();
  std::vector<Check> checks;
  for (const auto& tensor : step.state()) {
    const std::string& name = step.spec().tensors[static_cast<size_t>(tensor.tensor)].name;
    const std::vector<float> weights(tensor.weight, tensor.weight + tensor.count());
    std::copy(weights.begin(), weights.end(), tensor.weight);
    step.weights_changed();
    loss();  // leaves the gradients at this point
    std::vector<double> direction(tensor.gradient, tensor.gradient + tensor.count());
    double norm = 0;
    for (const double g : direction) norm += g * g;
    norm = std::sqrt(norm);
    if (norm == 0) {
      checks.push_back({.tensor = name, .by_gradient = 0, .by_difference = 0, .noise = 0});
      continue;
    }
    double weight_norm = 0;
    for (const float w : weights) weight_norm += static_cast<double>(w) * w;
    const double epsilon = 3e-3 * std::max(std::sqrt(weight_norm), 0.1);
    const auto loss_at = [&](double distance) {
      for (size_t i = 0; i < weights.size(); ++i) {
        tensor.weight[i] = static_cast<float>(weights[i] + distance * direction[i] / norm);
      }
      step.weights_changed();
      return loss();
    };
    // Fourth order, so that epsilon can be large compared with rounding.
    const double difference =
        (8 * (loss_at(epsilon) - loss_at(-epsilon)) - (loss_at(2 * epsilon) - loss_at(-2 * epsilon))) / (12 * epsilon);
    std::copy(weights.begin(), weights.end(), tensor.weight);
    step.weights_changed();
    checks.push_back(
        {.tensor = name, .by_gradient = norm, .by_difference = difference, .noise = 3e-7 * here / epsilon});
  }
  return checks;
}

void expect_right(const RunConfig& config) {
  for (const Check& check : check_gradients(config)) {
    INFO(check.tensor << ": " << check.by_gradient << " by gradient, " << check.by_difference << " by difference");
    CHECK(std::abs(check.by_gradient - check.by_difference) < 0.01 * check.by_difference + 5 * check.noise);
  }
}

}  // namespace

TEST_CASE("GPT-2 gradients") { expect_right(small_config(Family::gpt2)); }
TEST_CASE("GPT-2 gradients with accumulation") { expect_right(small_config(Family::gpt2, {"batch.micro=1"})); }
TEST_CASE("LLaMA gradients") { expect_right(small_config(Family::llama)); }

TEST_CASE("gradients through dropout") {
  expect_right(small_config(Family::gpt2, {"model.dropout=0.2", "batch.micro=2"}));
  expect_right(small_config(Family::llama, {"model.residual_dropout=0.3", "model.attention_dropout=0.1"}));
}

TEST_CASE("gradients with an attention window, documents, a softcap and sinks") {
  expect_right(small_config(Family::llama, {"model.attention_window=5", "data.mask_documents=true",
                                            "model.attention_softcap=1", "model.attention_sinks=true"}));
}

TEST_CASE("gradients of heads of their own size, biases of queries alone, and scaled angles") {
  expect_right(small_config(
      Family::llama, {"model.head_size=14", "model.qkv_bias=true", "model.qk_norm=false", "model.rope_scaling=llama3",
                      "model.rope_factor=4", "model.rope_theta=50", "model.rope_original_length=8"}));
  expect_right(small_config(Family::llama, {"model.head_size=6", "model.rope_scaling=linear", "model.rope_factor=3"}));
  expect_right(small_config(Family::gpt2, {"model.head_size=7", "model.qkv_bias=false"}));
}

TEST_CASE("gradients of mixed choices") {
  expect_right(small_config(
      Family::gpt2, {"model.norm=rmsnorm", "model.positions=rope", "model.activation=gelu", "model.tied_head=false"}));
  expect_right(small_config(
      Family::llama, {"model.norm=layernorm", "model.bias=true", "model.tied_head=true", "model.positions=learned"}));
  expect_right(small_config(Family::llama, {"model.qk_norm=false", "model.activation=gelu_tanh", "model.bias=true"}));
}

TEST_CASE("z-loss adds its gradient and leaves the reported loss alone") {
  const RunConfig plain = small_config(Family::gpt2);
  const RunConfig with_z = small_config(Family::gpt2, {"model.z_loss=0.01"});
  const auto one_step = [](const RunConfig& config) {
    const auto backend = make_cpu_backend(2);
    testing::OneRank rank(config);
    TrainingStep step(plan_rank({config, backend->target()}).design, *backend, rank.groups);
    step.initialize();
    RandomBatches batches(config);
    return step.run(1e-3, batches);
  };
  const StepResult a = one_step(plain);
  const StepResult b = one_step(with_z);
  CHECK(a.loss == b.loss);
  CHECK(a.grad_norm != b.grad_norm);
}

}  // namespace test_gradients
