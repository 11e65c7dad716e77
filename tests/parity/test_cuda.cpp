// A training step on the CUDA backend, compared with the CPU: on a device, or on the host harness.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "catch.h"
#include "device_trainer.h"
#include "differences.h"
#include "fit/recompute_plan.h"
#include "model_fixture.h"
#include "parallel/wrappers.h"
#include "train/run_state.h"

namespace test_cuda {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

const std::vector<std::string> fp16 = {"precision.compute=fp16", "run.device=cuda"};

const std::vector<std::vector<std::string>> variants = {
    {"model.dropout=0.1"},
    {"model.dropout=0.1", "batch.micro=2", "memory.recompute=block", "memory.loss_chunk_tokens=7",
     "model.attention_window=6", "data.mask_documents=true"},
    {"batch.micro=2", "memory.recompute=selective"},
    {"batch.micro=2", R"(memory.linear_projection={"kind":"gauss"})"},
    {"memory.saved_inputs=8"},
};

}  // namespace

TEST_CASE("gradients agree with the CPU's in f32") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const std::vector<std::string>& overrides : variants) {
      const RunConfig config = small_config(family, overrides);
      const State start = after_ten_steps(config);
      const State expected = first_moments(config, cpu(), start);
      const double bound = config.memory.saved_inputs == 8 ? 5e-4 : 2e-5;  // between two codes, either may be taken
      for (const auto& [name, values] : first_moments(config, cuda(), start)) {
        if (!name.starts_with("exp_avg/")) continue;
        INFO(name << " of " << overrides.back());
        CHECK(distance(values, expected.at(name)) < bound);
      }
    }
  }
}

// Routers choose by f32 logits: with equal choices, gradients differ by rounding. In bf16 a token near the border of
// two experts may go to the other one.
TEST_CASE("experts' gradients agree with the CPU's") {
  const std::vector<std::vector<std::string>> mixtures = {
      {R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":32,"shared":1,"aux_loss":0.1,"z_loss":0.01})",
       "memory.recompute=block"},
      {R"(model.moe={"experts":8,"top_k":4,"groups":4,"group_top_k":2,"ffn_hidden_size":32,"score":"sigmoid",)"
       R"("first":1,"capacity":1.1,"router_bias_rate":0.01,"aux_loss":0.1,"aux_over":"global","jitter":0.01})",
       "batch.micro=2"}};
  for (const std::vector<std::string>& overrides : mixtures) {
    const RunConfig config = small_config(Family::llama, overrides);
    std::vector<std::string> in_16_bits = overrides;
    in_16_bits.emplace_back("precision.compute=bf16");
    const RunConfig rounded = small_config(Family::llama, in_16_bits);
    const State start = after_ten_steps(config);
    const State expected = first_moments(config, cpu(), start);
    const State on_cpu = first_moments(rounded, cpu(), start), in_bf16 = first_moments(rounded, cuda(), start);
    for (const auto& [name, values] : first_moments(config, cuda(), start)) {
      INFO(name << " of " << overrides.front());
      const bool follows_loads = name.ends_with("router.bias") || name.ends_with("router.excess");
      if (follows_loads) CHECK(values == expected.at(name));
      if (follows_loads || !name.starts_with("exp_avg/")) continue;
      CHECK(distance(values, expected.at(name)) < 2e-5);
      CHECK(distance(in_bf16.at(name), expected.at(name)) < 2 * distance(on_cpu.at(name), expected.at(name)));
    }
  }
}

TEST_CASE("gradients in bf16 are as far from those in f32 as the CPU's, and those in fp16 nearer") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const RunConfig exact = small_config(family);
    const RunConfig rounded = small_config(family, {"precision.compute=bf16"});
    const State start = after_ten_steps(exact);
    const State expected = first_moments(exact, cpu(), start);
    const State on_cpu = first_moments(rounded, cpu(), start);
    const State in_bf16 = first_moments(rounded, cuda(), start);
    const State in_fp16 = first_moments(small_config(family, fp16), cuda(), start);
    for (const auto& [name, values] : in_bf16) {
      if (!name.starts_with("exp_avg/")) continue;
      INFO(name);
      const double of_bf16 = distance(on_cpu.at(name), expected.at(name));
      CHECK(distance(values, expected.at(name)) < 2 * of_bf16);
      // fp16 has three more bits.
      CHECK(distance(in_fp16.at(name), expected.at(name)) < 0.3 * of_bf16);
    }
  }
}

TEST_CASE(
    "recomputed and offloaded activations give the same bits, but where a product would give the activation, too") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
      INFO(precision);
      // Has a width for which products fuse the activation.
      RunConfig config =
          small_config(family, {precision, "model.dropout=0.1", "model.hidden_size=48", "model.ffn_hidden_size=96",
                                "model.sequence_length=20", "model.num_layers=4"});
      const auto run = [&](RecomputeKind recompute, OffloadChoice offloaded = {}) {
        config.memory.recompute = recompute;
        config.memory.offload = offloaded;
        config.memory.activation_budget = RecomputePlanner({config, cuda()->target(), 1}, 0).least().bytes;
        Trainer trainer(config, cuda());
        CHECK(trainer.took_what_was_planned());
        trainer.run();
        return trainer.run().loss;
      };
      const double none = run(RecomputeKind::none);
      if (family == Family::gpt2) CHECK(run(RecomputeKind::none, OffloadChoice::of_blocks(2)) == none);
      if (family == Family::llama) CHECK(run(RecomputeKind::block, offload::all) == none);
      CHECK(run(RecomputeKind::optimal, family == Family::gpt2 ? offload::none : offload::optimal) == none);
      const bool gives_activation = family == Family::gpt2 && std::string(precision).ends_with("bf16");
      if (gives_activation) CHECK(run(RecomputeKind::ffn) == none);
      CHECK(run(RecomputeKind::selective) == Approx(none).epsilon(gives_activation ? 1e-3 : 0));
    }
  }
}

// Samples have 19 documents, except for the last one of the first step: its 20 are for our own kernels.
TEST_CASE("documents that a library takes give what they give on the CPU") {
  const auto with = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"model.num_layers=1",       "model.hidden_size=32", "model.sequence_length=128",
                                    "data.mask_documents=true", "batch.micro=2",        "model.attention_window=6"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return small_config(Family::llama, all);
  };
  constexpr int64_t first_sample = 1002;
  const RunConfig exact = with({}), rounded = with({"precision.compute=bf16"});
  const RunConfig in_room = with({"precision.compute=bf16", "data.max_documents=19"});
  const State start = first_moments(exact, cpu(), Trainer(exact, cpu()).state(), 0);
  const State expected = first_moments(exact, cpu(), start, first_sample);
  const State on_cpu = first_moments(rounded, cpu(), start, first_sample);
  Trainer trainer(in_room, cuda(), first_sample), own(rounded, cuda(), first_sample);
  for (Trainer* each : {&trainer, &own}) {
    each->set_weights(start);
    each->run();
  }
  const State state = trainer.state();
  // Results are bit-equal exactly if a warning says that our own kernels run.
  CHECK((state == own.state()) == !trainer.take_warnings().empty());
  for (const auto& [name, values] : state) {
    if (!name.starts_with("exp_avg/")) continue;
    INFO(name);
    CHECK(distance(values, expected.at(name)) < 2 * distance(on_cpu.at(name), expected.at(name)));
  }
  // A graph recorded once runs again with other documents.
  for (int i = 0; i < 3; ++i) CHECK(trainer.run().loss == Approx(own.run().loss).epsilon(2e-3));
  CHECK(trainer.took_what_was_planned());
  Trainer any_order(with({"precision.compute=bf16", "data.max_documents=19", "run.deterministic=false"}), cuda());
  CHECK(std::isfinite(any_order.run().loss));
  CHECK(any_order.take_warnings().starts_with(
      "attention's gradients are added up in any order (run.deterministic = false)"));
}

TEST_CASE("documents that no library takes are the own kernels', which is said once") {
  const auto run = [](const std::vector<std::string>& overrides) {
    Trainer trainer(small_config(Family::gpt2, overrides), cuda());
    for (int i = 0; i < 2; ++i) trainer.run();
    return std::pair(trainer.state(), trainer.take_warnings());
  };
  const auto [state, warnings] = run({"data.mask_documents=true", "data.max_documents=4"});
  CHECK(first_difference(state, run({"data.mask_documents=true"}).first) == "");
  CHECK(warnings.starts_with("attention_forward B=4 T=19 H=3 G=3 D=12 f32 documents in room for 4: a library wants "));
  CHECK(warnings.find("; own kernels compute it\nattention_backward B=4 ") != std::string::npos);
  CHECK(std::count(warnings.begin(), warnings.end(), '\n') == 2);
}

TEST_CASE("in fp16 the loss scale is sought and found, and saved with the rest") {
  std::vector<std::string> overrides = fp16;
  overrides.insert(overrides.end(), {"precision.loss_scale=16777216", "precision.loss_scale_window=3"});
  const RunConfig config = small_config(Family::gpt2, overrides);
  Trainer trainer(config, cuda());
  LossScale expected{0x1p24F, 0};
  int64_t updates = 0, skipped = 0;
  State before = trainer.state();
  for (int i = 0; i < 14; ++i) {
    const StepResult result = trainer.run();
    INFO("step " << i);
    CHECK(std::isfinite(result.loss));
    CHECK(result.loss_scale == static_cast<double>(expected.value));
    CHECK(result.lowered_loss_scale() == result.skipped);
    State after = trainer.state();
    CHECK((after == before) == result.skipped);
    before = std::move(after);
    (result.skipped ? skipped : updates) += 1;
    CHECK(result.updates == updates);
    expected = next_loss_scale(expected, result.skipped, 3);
  }
  CHECK(skipped > 0);
  CHECK(updates > 3);  // the scale has been doubled, too
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gptrain-scale-" + std::to_string(getpid()));
  trainer.save(folder, updates);
  Trainer resumed(config, cuda());
  resumed.load(folder);
  REQUIRE(resumed.step().loss_scale());
  CHECK(resumed.step().loss_scale()->value == expected.value);
  CHECK(resumed.step().loss_scale()->good_steps == expected.good_steps);
  std::filesystem::remove_all(folder);
}

// Starts from equal weights: norms and updates depend on the loss scale by rounding only.
TEST_CASE("in fp16 the loss scale changes neither the norm nor the update") {
  std::vector<std::string> small = fp16, large = fp16;
  small.emplace_back("precision.loss_scale=256");
  large.emplace_back("precision.loss_scale=65536");
  Trainer a(small_config(Family::llama, small), cuda()), b(small_config(Family::llama, large), cuda());
  CHECK(a.run().grad_norm == Approx(b.run().grad_norm).epsilon(2e-3));
  for (const auto& [name, values] : a.state()) {
    INFO(name);
    CHECK(distance(values, b.state().at(name)) < 0.02);
  }
}

TEST_CASE("losses and norms of 20 steps agree with the CPU's") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    // Documents change from step to step while the recorded graph stays the same.
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

// An op whose result tells how often it has run.
class Counter {
 public:
  explicit Counter(Backend& backend) : backend_(backend), memory_(backend.allocate(512)) {
    const float start = 1;
    backend.upload(one_, &start, 4);
    reset();
  }
  void reset() {
    const float start = 0;
    backend_.upload(sum_, &start, 4);
  }
  void add_one() { backend_.run(Add{.from = Matrix(one_, DType::f32, 1, 1), .to = Matrix(sum_, DType::f32, 1, 1)}); }
  float value() {
    float value = 0;
    backend_.download(&value, sum_, 4);
    return value;
  }

 private:
  Backend& backend_;
  std::unique_ptr<DeviceMemory> memory_;
  float* const one_ = reinterpret_cast<float*>(memory_->data());
  float* const sum_ = one_ + 64;
};

TEST_CASE("what cannot be captured runs op by op, and a warning says why, each reason once") {
  const auto backend = cuda();
  Counter counter(*backend);
  int calls = 0;
  std::string reason = "it is not for graphs";
  // Runs the ops four times. The second call is the one that is captured.
  const auto sum_of = [&](uint64_t key, bool refuses) {
    counter.reset();
    calls = 0;
    for (int i = 0; i < 4; ++i) {
      backend->run_recorded(RecordingKey(key), [&] {
        counter.add_one();
        if (++calls == 2 && refuses) throw Error(ExitCode::device, "{}", reason);
      });
    }
    return counter.value();
  };
  CHECK(sum_of(1, false) == 4);
  CHECK(calls == 2);
  CHECK(backend->take_warnings() == "");
  CHECK(sum_of(2, true) == 4);
  CHECK(calls == 5);
  CHECK(backend->take_warnings() ==
        "some ops of the step run one by one and not as a CUDA graph, which is slower: it is not for graphs\n");
  CHECK(sum_of(3, true) == 4);
  CHECK(backend->take_warnings() == "");
  reason = "nor is this";
  CHECK(sum_of(4, true) == 4);
  CHECK(backend->take_warnings() ==
        "some ops of the step run one by one and not as a CUDA graph, which is slower: nor is this\n");
  CHECK(sum_of(1, true) == 4);
  CHECK(calls == 0);
  backend->set_scratch(nullptr, 0);  // recordings refer to the scratch memory
  CHECK(sum_of(1, false) == 4);
  CHECK(calls == 2);
}

TEST_CASE("a mistake amid a capture goes to the caller, and the backend goes on") {
  const auto backend = cuda();
  Counter counter(*backend);
  const auto add = [&] { counter.add_one(); };
  backend->run_recorded(RecordingKey(1), add);
  CHECK_THROWS_WITH(backend->run_recorded(RecordingKey(1),
                                          [&] {
                                            add();
                                            throw std::logic_error("a mistake");
                                          }),
                    "a mistake");
  add();
  for (int i = 0; i < 3; ++i) backend->run_recorded(RecordingKey(1), add);
  CHECK(counter.value() == 5);  // all except the one whose capture failed
  CHECK(backend->take_warnings() == "");
}

TEST_CASE("the same bits every time, in whatever order threads run") {
  for (const char* precision :
       {"precision.compute=fp32", "precision.compute=bf16", "precision.compute=fp16", "precision.compute=bf16-pure"}) {
    const RunConfig config = small_config(Family::llama, {precision, "model.dropout=0.1", "run.device=cuda"});
    Trainer once(config, cuda(0)), again(config, cuda(1));
    for (int i = 0; i < 3; ++i) CHECK(once.run().loss == again.run().loss);
    CHECK(first_difference(once.state(), again.state()) == "");
  }
}

// AdamW's first step hardly depends on the rounding of sums; with other random bits a third of the weights would
// differ.
TEST_CASE("weights without masters, and gradients in bf16, are rounded by the CPU's random bits") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const RunConfig config = small_config(family, {"precision.compute=bf16-pure", "precision.gradients=bf16"});
    Trainer on_cuda(config, cuda()), on_cpu(config, cpu());
    CHECK(on_cuda.took_what_was_planned());
    CHECK(first_difference(on_cuda.state(), on_cpu.state()) == "");
    CHECK(on_cuda.run().loss == Approx(on_cpu.run().loss).epsilon(1e-3));
    const State state = on_cuda.state();
    double differing = 0, all = 0;
    for (const auto& [name, values] : on_cpu.state()) {
      if (!name.starts_with("weight/") || name.find("norm") != std::string::npos) continue;
      for (size_t i = 0; i < values.size(); ++i) differing += values[i] != state.at(name)[i] ? 1 : 0;
      all += static_cast<double>(values.size());
    }
    std::printf("%.2f%% of the weights differ\n", 100 * differing / all);
    CHECK(differing / all < 0.02);
  }
}

TEST_CASE("checkpoints move between CPU and CUDA") {
  const char* const precision = GENERATE("precision.compute=fp32", "precision.compute=bf16-pure");
  const RunConfig config = small_config(Family::gpt2, {precision});
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gptrain-cuda-" + std::to_string(getpid()));
  Trainer on_cuda(config, cuda()), on_cpu(config, cpu());
  for (int i = 0; i < 3; ++i) on_cuda.run();
  on_cuda.save(folder / "from_cuda");
  on_cpu.load(folder / "from_cuda");
  CHECK(first_difference(on_cpu.state(), on_cuda.state()) == "");
  on_cpu.run();
  on_cpu.save(folder / "from_cpu");
  on_cuda.load(folder / "from_cpu");
  CHECK(first_difference(on_cpu.state(), on_cuda.state()) == "");
  std::filesystem::remove_all(folder);
}

}  // namespace test_cuda
