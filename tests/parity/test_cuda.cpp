// A training step on the CUDA backend against the same on the CPU: on a device, or on the host harness.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <unistd.h>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "train/plan_step.h"
#include "train/run_state.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

constexpr int exit_skipped = 77;

using State = std::map<std::string, std::vector<float>>;

// A model and its optimizer on a device of their own.
class Trainer {
 public:
  Trainer(const RunConfig& config, std::unique_ptr<Backend> backend, int64_t first_sample = 0)
      : config_(config),
        backend_(std::move(backend)),
        rank_(config),
        memory_(plan_step(config, backend_->target()).memory),
        step_(config, memory_, *backend_, rank_.groups),
        batches_(config, first_sample) {
    step_.initialize();
  }

  TrainingStep& step() { return step_; }
  StepResult run() { return step_.run(1e-3, batches_); }

  State state() {
    State state;
    for (const StatePiece& piece : step_.state()) {
      const std::string& name = step_.spec().tensors[static_cast<size_t>(piece.tensor)].name;
      const auto copy = [&](const char* kind, const float* data) {
        std::vector<float>& values = state[kind + name];
        values.resize(static_cast<size_t>(piece.count()));
        backend_->download(values.data(), data, piece.count() * dtype_bytes(DType::f32));
      };
      copy("weight/", piece.weight);
      copy("exp_avg/", piece.exp_avg);
      copy("exp_avg_sq/", piece.exp_avg_sq);
    }
    return state;
  }
  void set_weights(const State& state) {
    for (const StatePiece& piece : step_.state()) {
      const std::vector<float>& weight =
          state.at("weight/" + step_.spec().tensors[static_cast<size_t>(piece.tensor)].name);
      backend_->upload(piece.weight, weight.data(), piece.count() * dtype_bytes(DType::f32));
    }
    step_.weights_changed();
  }
  bool took_what_was_planned() const { return step_.taken().bytes == memory_.arenas.bytes; }
  void save(const std::filesystem::path& out) {
    RunConfig config = config_;
    config.run.out = out.string();
    save_state(config, step_, {.step = 3, .updates = 3}, rank_.groups, *rank_.world);
  }
  void load(const std::filesystem::path& out) {
    load_state(resolve_checkpoint(out), step_, rank_.groups, *rank_.world);
  }

 private:
  RunConfig config_;
  std::unique_ptr<Backend> backend_;
  testing::OneRank rank_;
  StepMemory memory_;
  TrainingStep step_;
  RandomBatches batches_;
};

std::unique_ptr<Backend> cuda(int device = 0) {
  if (num_cuda_devices() == 0) {
    std::puts("skipped: there is no CUDA device");
    std::exit(exit_skipped);
  }
  return make_cuda_backend(device % num_cuda_devices());
}

std::unique_ptr<Backend> cpu() { return make_cpu_backend(2); }

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

State after_ten_steps(const RunConfig& config) {
  Trainer trainer(config, cpu());
  for (int i = 0; i < 10; ++i) trainer.run();
  return trainer.state();
}

// One step with fresh moments from given weights: exp_avg is (1 - beta1) times the clipped gradient.
State first_moments(const RunConfig& config, std::unique_ptr<Backend> backend, const State& start) {
  Trainer trainer(config, std::move(backend), 1000);
  trainer.set_weights(start);
  trainer.run();
  return trainer.state();
}

const std::vector<std::vector<std::string>> variants = {
    {"model.dropout=0.1"},
    {"model.dropout=0.1", "batch.micro=2", "memory.recompute=block", "memory.loss_chunk_tokens=7",
     "model.attention_window=6", "data.mask_documents=true"},
};

}  // namespace

TEST_CASE("gradients agree with the CPU's in f32") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const std::vector<std::string>& overrides : variants) {
      const RunConfig config = small_config(family, overrides);
      const State start = after_ten_steps(config);
      const State expected = first_moments(config, cpu(), start);
      for (const auto& [name, values] : first_moments(config, cuda(), start)) {
        if (!name.starts_with("exp_avg/")) continue;
        INFO(name << " of " << overrides.back());
        CHECK(distance(values, expected.at(name)) < 2e-5);
      }
    }
  }
}

TEST_CASE("gradients in bf16 are as far from those in f32 as the CPU's") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const RunConfig exact = small_config(family);
    const RunConfig rounded = small_config(family, {"precision.compute=bf16"});
    const State start = after_ten_steps(exact);
    const State expected = first_moments(exact, cpu(), start);
    const State on_cpu = first_moments(rounded, cpu(), start);
    for (const auto& [name, values] : first_moments(rounded, cuda(), start)) {
      if (!name.starts_with("exp_avg/")) continue;
      INFO(name);
      CHECK(distance(values, expected.at(name)) < 2 * distance(on_cpu.at(name), expected.at(name)));
    }
  }
}

TEST_CASE("losses and norms of 20 steps agree with the CPU's") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    // Documents that change from step to step, for what is recorded once and played again.
    const std::vector<std::string> masked = {"model.dropout=0.1", "model.attention_window=6",
                                             "data.mask_documents=true"};
    const RunConfig config = small_config(family, family == Family::gpt2 ? variants.front() : masked);
    Trainer on_cpu(config, cpu()), on_cuda(config, cuda());
    CHECK(on_cuda.took_what_was_planned());
    for (int i = 0; i < 20; ++i) {
      const StepResult expected = on_cpu.run(), result = on_cuda.run();
      INFO("step " << i);
      CHECK(result.loss == Approx(expected.loss).epsilon(1e-5));
      CHECK(result.grad_norm == Approx(expected.grad_norm).epsilon(i < 5 ? 1e-5 : 1e-4));
    }
    CHECK(on_cuda.step().evaluate(1, *std::make_unique<RandomBatches>(config)) ==
          Approx(on_cpu.step().evaluate(1, *std::make_unique<RandomBatches>(config))).epsilon(1e-4));
  }
}

TEST_CASE("the same bits every time, in whatever order threads run") {
  for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const RunConfig config = small_config(Family::llama, {precision, "model.dropout=0.1"});
    Trainer once(config, cuda(0)), again(config, cuda(1));
    for (int i = 0; i < 3; ++i) CHECK(once.run().loss == again.run().loss);
    CHECK(once.state() == again.state());
  }
}

TEST_CASE("checkpoints move between CPU and CUDA") {
  const RunConfig config = small_config(Family::gpt2);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gptrain-cuda-" + std::to_string(getpid()));
  Trainer on_cuda(config, cuda()), on_cpu(config, cpu());
  for (int i = 0; i < 3; ++i) on_cuda.run();
  on_cuda.save(folder / "from_cuda");
  on_cpu.load(folder / "from_cuda");
  CHECK(on_cpu.state() == on_cuda.state());
  on_cpu.run();
  on_cpu.save(folder / "from_cpu");
  on_cuda.load(folder / "from_cpu");
  CHECK(on_cpu.state() == on_cuda.state());
  std::filesystem::remove_all(folder);
}
