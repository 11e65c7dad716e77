// A training step with FP8 linears on the CUDA backend: on a device, or on the host harness.
#include <algorithm>
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

// Stores the results of activations, and quantizes them in a separate pass.
class SeparateQuantization final : public ForwardingBackend {
 public:
  explicit SeparateQuantization(std::unique_ptr<Backend> inner) : ForwardingBackend(*inner), owned_(std::move(inner)) {}

  using ForwardingBackend::run;
  void run(const ActivationForward& op) override {
    store_and_quantize(op, &ActivationForward::y, activated_cols(op.kind, op.x.cols));
  }
  void run(const ActivationBackward& op) override { store_and_quantize(op, &ActivationBackward::dx, op.x.cols); }
  int found() const { return found_; }

 private:
  template <typename Op>
  void store_and_quantize(Op op, Matrix Op::*output, int64_t cols) {
    const Fp8Copies to = std::exchange(op.fp8, {});
    if (!to.given()) return inner_.run(op);
    const int64_t bytes = op.x.rows * cols * dtype_bytes(DType::bf16);
    if (!memory_) memory_ = inner_.allocate(1 << 20);
    REQUIRE(bytes <= 1 << 20);
    op.*output = Matrix(memory_->data(), DType::bf16, op.x.rows, cols);
    inner_.run(op);
    inner_.run(Quantize{op.*output, to});
    ++found_;
  }

  std::unique_ptr<Backend> owned_;
  std::unique_ptr<DeviceMemory> memory_;
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

TEST_CASE("activations that are quantized as they are computed give the bits of a separate pass", "[fp8]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const RunConfig config = fp8_config(family, {"precision.amax_history=2"});
    auto separate = std::make_unique<SeparateQuantization>(fp8_cuda());
    const SeparateQuantization& counter = *separate;
    Trainer fused(config, fp8_cuda()), apart(config, std::move(separate));
    for (int i = 0; i < 3; ++i) CHECK(fused.run().loss == apart.run().loss);
    CHECK(first_difference(fused.state(), apart.state()) == "");
    CHECK(fused.step().amax_history() == apart.step().amax_history());
    CHECK(counter.found() == 3 * 3 * 2);  // in each of three steps and three blocks: forward and backward
  }
}

TEST_CASE("losses with delayed scales stay near those with current ones, in less memory", "[fp8]") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const RunConfig config = fp8_config(family, {"precision.amax_history=4"});
    Trainer current(fp8_config(family), fp8_cuda()), delayed(config, fp8_cuda());
    CHECK(delayed.took_what_was_planned());
    for (int i = 0; i < (family == Family::gpt2 ? 12 : 4); ++i) {
      const StepResult expected = current.run(), result = delayed.run();
      INFO("step " << i);
      CHECK(!result.skipped);
      CHECK(result.loss == Approx(expected.loss).epsilon(2e-3));
      CHECK(result.grad_norm == Approx(expected.grad_norm).epsilon(0.05));
    }
    const std::vector<float> amaxes = delayed.step().amax_history();
    CHECK(std::ssize(amaxes) == 4 * 2 * 3 * 4);
    CHECK(std::all_of(amaxes.begin(), amaxes.end(), [](float amax) { return amax > 0; }));
    RandomBatches batches(config);
    delayed.step().evaluate(1, batches);
    CHECK(delayed.step().amax_history() == amaxes);
  }
  const Target target = fp8_cuda()->target();
  const auto plan = [&](const char* history) { return plan_rank({fp8_config(Family::gpt2, {history}), target}); };
  const StepPlan current = plan("precision.amax_history=0"), delayed = plan("precision.amax_history=4");
  // All that is quantized apart: weights, inputs of three linears of a block, gradients of three.
  CHECK(delayed.ops[op_index<Quantize>].calls == 3 * (4 + 3 + 3));
  CHECK(delayed.ops[op_index<Amax>].calls == 3 * 4);
  CHECK(delayed.ops[op_index<RollAmaxes>].calls == 1);
  CHECK(delayed.memory().arenas[MemoryClass::workspace] < current.memory().arenas[MemoryClass::workspace]);
  CHECK(delayed.total().bytes_moved < current.total().bytes_moved);
}

TEST_CASE("delayed scales: the same bits recomputed and after a checkpoint, with another history too", "[fp8]") {
  const RunConfig config = fp8_config(Family::llama, {"batch.global=8", "precision.amax_history=2"});
  Trainer once(config, fp8_cuda(0));
  Trainer recomputed(
      fp8_config(Family::llama, {"batch.global=8", "precision.amax_history=2", "memory.recompute=block"}), fp8_cuda());
  for (int i = 0; i < 3; ++i) CHECK(recomputed.run().loss == once.run().loss);
  CHECK(first_difference(recomputed.state(), once.state()) == "");
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gptrain-amax-" + std::to_string(getpid()));
  once.save(folder);
  Trainer resumed(config, fp8_cuda(), 3 * config.batch.global);
  resumed.load(folder);
  CHECK(resumed.step().amax_history() == once.step().amax_history());
  CHECK(resumed.run().loss == once.run().loss);
  CHECK(first_difference(resumed.state(), once.state()) == "");
  CHECK(resumed.step().amax_history() == once.step().amax_history());
  Trainer longer(fp8_config(Family::llama, {"batch.global=8", "precision.amax_history=5"}), fp8_cuda());
  longer.load(folder);
  const std::vector<float> kept = longer.step().amax_history();
  CHECK(std::ssize(kept) == 3 * 24);  // the last two of three steps; the first is unknown
  CHECK(std::all_of(kept.begin(), kept.begin() + 24, [](float amax) { return amax == 0; }));
  CHECK(kept[24] > 0);
  std::filesystem::remove_all(folder);
}

TEST_CASE("an FP8 weight that is not finite makes a step that is skipped", "[fp8]") {
  for (const char* tensor : {"weight/blocks.1.attention.qkv.weight", "weight/blocks.2.ffn.out.weight"}) {
    const bool delayed = tensor == std::string("weight/blocks.2.ffn.out.weight");
    Trainer trainer(fp8_config(Family::gpt2, {delayed ? "precision.amax_history=2" : "precision.amax_history=0"}),
                    fp8_cuda());
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
