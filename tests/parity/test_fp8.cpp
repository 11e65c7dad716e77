// A training step with FP8 linears on the CUDA backend: on a device, or on the host harness.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "catch.h"
#include "device_trainer.h"
#include "differences.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "parallel/wrappers.h"
#include "step/plan_step.h"

namespace test_fp8 {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

// Sizes that FP8 products accept, none a power of two.
RunConfig fp8_config(Family family, const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = {"model.hidden_size=48",   "model.ffn_hidden_size=112", "model.sequence_length=20",
                                  "precision.compute=bf16", "precision.linears=fp8",     "run.device=auto"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return small_config(family, all);
}

// Computes every amax in a separate pass.
class SeparateAmax final : public ForwardingBackend {
 public:
  explicit SeparateAmax(std::unique_ptr<Backend> inner) : ForwardingBackend(*inner), owned_(std::move(inner)) {}

  using ForwardingBackend::run;
  void run(const NormForward& op) override { run_and_find_amax(op, op.y); }
  void run(const NormBackward& op) override { run_and_find_amax(op, op.dx); }
  void run(const BranchBackward& op) override { run_and_find_amax(op, op.d_branch); }
  void run(const ActivationForward& op) override { run_and_find_amax(op, op.y); }
  void run(const ActivationBackward& op) override { run_and_find_amax(op, op.dx); }
  int found() const { return found_; }

 private:
  template <typename Op>
  void run_and_find_amax(Op op, const Matrix& output) {
    const Matrix amax = std::exchange(op.amax, {});
    inner_.run(op);
    if (!amax.given()) return;
    inner_.run(Amax{output, amax});
    ++found_;
  }

  std::unique_ptr<Backend> owned_;
  int found_ = 0;
};

std::unique_ptr<Backend> fp8_cuda(int device = 0) {
  std::unique_ptr<Backend> backend = cuda(device);
  if (!backend->target().fp8_products) {
    std::printf("skipped: %s has no FP8 products\n", backend->target().name.c_str());
    std::exit(exit_skipped);
  }
  return backend;
}

}  // namespace

TEST_CASE("gradients of FP8 linears are as far from those in f32 as the formats round", "[fp8]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    std::unique_ptr<Backend> device = fp8_cuda();
    const RunConfig exact = fp8_config(family, {"precision.compute=fp32", "precision.linears=fp32"});
    const State start = after_ten_steps(exact);
    const State expected = first_moments(exact, cpu(), start);
    for (const auto& [name, values] : first_moments(fp8_config(family), std::move(device), start)) {
      if (!name.starts_with("exp_avg/")) continue;
      INFO(name);
      const double away = distance(values, expected.at(name));
      // Gradients of the weights of norms in heads are small differences of larger numbers.
      CHECK(away < (name.find("_norm") == std::string::npos ? 0.13 : 0.25));
      if (name.starts_with("exp_avg/blocks.") && name.ends_with("ffn.in.weight")) CHECK(away > 0.02);
    }
  }
}

TEST_CASE("losses with FP8 linears stay near those in bf16, with arenas as planned", "[fp8]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const RunConfig config = fp8_config(family);
    Trainer bf16(fp8_config(family, {"precision.linears=bf16"}), fp8_cuda()), fp8(config, fp8_cuda());
    CHECK(fp8.took_what_was_planned());
    for (int i = 0; i < (family == Family::gpt2 ? 20 : 3); ++i) {
      const StepResult expected = bf16.run(), result = fp8.run();
      INFO("step " << i);
      CHECK(result.loss == Approx(expected.loss).epsilon(2e-3));
      CHECK(result.grad_norm == Approx(expected.grad_norm).epsilon(0.03));
    }
    RandomBatches batches(config), same(config);
    const double loss = fp8.step().evaluate(1, batches);
    CHECK(loss == Approx(bf16.step().evaluate(1, same)).epsilon(2e-3));
  }
}

TEST_CASE("FP8 linears give the same bits every time, recomputed, and after a checkpoint", "[fp8]") {
  const RunConfig config = fp8_config(Family::llama, {"batch.global=8"});
  Trainer once(config, fp8_cuda(0)), again(config, fp8_cuda(1));
  Trainer recomputed(fp8_config(Family::llama, {"batch.global=8", "memory.recompute=block"}), fp8_cuda());
  Trainer selective(fp8_config(Family::llama, {"batch.global=8", "memory.recompute=selective"}), fp8_cuda());
  for (int i = 0; i < 3; ++i) {
    const double loss = once.run().loss;
    for (Trainer* other : {&again, &recomputed, &selective}) CHECK(other->run().loss == loss);
  }
  const State state = once.state();
  for (Trainer* other : {&again, &recomputed, &selective}) CHECK(first_difference(other->state(), state) == "");
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gptrain-fp8-" + std::to_string(getpid()));
  once.save(folder);
  Trainer resumed(config, fp8_cuda(), 3 * config.batch.global);
  resumed.load(folder);
  CHECK(resumed.run().loss == once.run().loss);
  CHECK(first_difference(resumed.state(), once.state()) == "");
  std::filesystem::remove_all(folder);
}

TEST_CASE("an amax that the producing op finds gives the bits of one that another op finds", "[fp8]") {
  for (const char* dropout : {"model.dropout=0", "model.dropout=0.1"}) {
    for (const Family family : {Family::gpt2, Family::llama}) {
      INFO(dropout);
      const RunConfig config = fp8_config(family, {dropout});
      auto separate = std::make_unique<SeparateAmax>(fp8_cuda());
      const SeparateAmax& counter = *separate;
      Trainer on_the_way(config, fp8_cuda()), by_itself(config, std::move(separate));
      for (int i = 0; i < 2; ++i) CHECK(on_the_way.run().loss == by_itself.run().loss);
      CHECK(first_difference(on_the_way.state(), by_itself.state()) == "");
      // In each of two steps and three blocks: outputs of both norms and of the activation, and in backward the
      // gradients of both branches and of the activation. Without dropout a branch's gradient is the stream's, left by
      // the layer behind.
      CHECK(counter.found() == 2 * 3 * 6);
    }
  }
}

TEST_CASE("an FP8 weight that is not finite makes a step that is skipped", "[fp8]") {
  const RunConfig config = fp8_config(Family::gpt2);
  for (const char* tensor : {"weight/blocks.1.attention.qkv.weight", "weight/blocks.2.ffn.out.weight"}) {
    Trainer trainer(config, fp8_cuda());
    State state = trainer.state();
    state.at(tensor)[5] = std::numeric_limits<float>::infinity();
    trainer.set_weights(state);
    CHECK(trainer.run().skipped);
    CHECK(first_difference(trainer.state(), state) == "");
  }
}

TEST_CASE("weights are quantized to FP8 once in a step, and save activations", "[fp8]") {
  const RunConfig config = fp8_config(Family::gpt2, {"batch.global=12"});
  const Target target = fp8_cuda()->target();
  const StepPlan fp8 = plan_rank({config, target});
  const StepPlan bf16 = plan_rank({fp8_config(Family::gpt2, {"batch.global=12", "precision.linears=bf16"}), target});
  const auto calls = [&](size_t op) { return fp8.ops[op].calls; };
  // Each of three blocks has four weights, and in each of three micro-batches four inputs and four gradients. Weights,
  // attention's output, and the gradient of queries, keys and values come without an amax.
  CHECK(calls(op_index<Quantize>) == 3 * (4 + 3 * (4 + 4)));
  CHECK(calls(op_index<Amax>) == 3 * (4 + 3 * 2));
  CHECK(calls(op_index<ScaledProduct>) == 3 * 3 * 12);
  CHECK(fp8.total().model_flops == bf16.total().model_flops);
  CHECK(fp8.memory().arenas[MemoryClass::activations] < bf16.memory().arenas[MemoryClass::activations]);
  const int64_t weights = 48 * (3 * 48 + 48 + 2 * 112);
  CHECK(fp8.memory().arenas[MemoryClass::fp8_weights] == 3 * (2 * weights + 4 * memory_alignment));
  CHECK(bf16.memory().arenas[MemoryClass::fp8_weights] == 0);
}

}  // namespace test_fp8
