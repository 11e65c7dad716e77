// Compares ranks on CUDA with one rank: on one shared device, or on the host harness.
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "differences.h"
#include "events.h"
#include "methods.h"
#include "model_fixture.h"
#include "on_cuda.h"
#include "same_outcomes.h"
#include "some_cases.h"
#include "touched.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr int64_t num_samples = 8;

struct Layout {
  int64_t tensor, data;
  Overrides overrides;

  int64_t world_size() const { return tensor * data; }
  std::string name() const {
    std::string name = fmt::format("tensor {} data {}", tensor, data);
    for (const std::string& key : overrides) name += " " + key;
    return name;
  }
};

// The eps of layouts.cpp: the first step must not depend on the sign of a gradient that is zero except for rounding.
RunConfig config_of(Family family, const Layout& layout) {
  Overrides overrides = {"model.num_heads=6",
                         "model.num_kv_heads=2",
                         "model.hidden_size=48",
                         "model.ffn_hidden_size=60",
                         "model.sequence_length=20",
                         "model.dropout=0.1",
                         "optimizer.eps=1e-4",
                         fmt::format("batch.global={}", num_samples),
                         fmt::format("batch.micro={}", num_samples / layout.data / 2),
                         fmt::format("parallel.tensor={}", layout.tensor)};
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  return small_config(family, overrides, layout.world_size());
}

Outcome train(Family family, const Layout& layout, int steps, const GlobalState* start = nullptr,
              const Wrapping& wrapping = on_cuda) {
  return train_on_ranks(config_of(family, layout), layout.world_size(), steps, start, start == nullptr ? 0 : 1000,
                        wrapping);
}

const std::vector<Layout> layouts = {
    {2, 1, {}},
    {2, 1, {"parallel.sequence=true"}},
    {2, 1, {"parallel.sequence=true", "parallel.overlap_tensor=true"}},
    {1, 2, {"parallel.zero=0"}},
    {1, 2, {"parallel.zero=1"}},
    {1, 2, {"parallel.zero=2"}},
    {1, 2, {"parallel.zero=3"}},
    {2, 2, {"parallel.sequence=true", "parallel.zero=1"}},
    {2, 2, {"parallel.zero=3"}},
    {1, 2, {"parallel.context=2", "parallel.zero=1"}},
    {1, 4, {"parallel.context=2", "parallel.zero=3", "memory.recompute=selective"}},
    {1, 2, {"parallel.context=2", "parallel.context_method=ring"}},
    {1, 4, {"parallel.context=2", "parallel.context_method=ring", "parallel.zero=3", "memory.recompute=block"}},
};

bool same_bits(const Outcome& a, const Outcome& b) {
  if (a.losses != b.losses || a.norms != b.norms || a.torn + b.torn != "") return false;
  for (const auto& [name, values] : a.state) {
    if (std::memcmp(values.data(), b.state.at(name).data(), values.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("first moments of layouts on CUDA agree with those of one CUDA rank") {
  require_device();
  const std::vector<Family> families =
      some_cases() ? std::vector{Family::llama} : std::vector{Family::gpt2, Family::llama};
  for (const Family family : families) {
    const GlobalState start = train(family, {1, 1, {}}, 10, nullptr, {}).state;
    const Outcome one = train(family, {1, 1, {}}, 1, &start);
    for (const Layout& layout : layouts) {
      const Outcome many = train(family, layout, 1, &start);
      const Difference d = difference(make_spec(config_of(family, layout).model), one, many);
      fmt::print("{}: moment {:.1e} of {}, weight {:.1e}, loss {:.1e}, norm {:.1e}\n", layout.name(), d.first_moment,
                 d.moment_of, d.weight, d.loss, d.norm);
      INFO(layout.name());
      CHECK(d.small());
    }
  }
}

TEST_CASE("ZeRO 0 and 1, and 2 and 3, give the same bits on CUDA, and so does the same run again") {
  require_device();
  std::vector<const char*> precisions = {"precision.compute=bf16"};
  if (!some_cases()) precisions.insert(precisions.end(), {"precision.compute=fp32", "precision.compute=bf16-pure"});
  for (const char* precision : precisions) {
    const auto run = [&](int zero) {
      return train(Family::llama, {2, 2, {precision, fmt::format("parallel.zero={}", zero), "optimizer.ema=0.9"}}, 2);
    };
    const Outcome zero0 = run(0), zero2 = run(2);
    CHECK(same_bits(zero0, run(0)));
    CHECK(same_bits(zero0, run(1)));
    CHECK(same_bits(zero2, run(3)));
    CHECK(zero0.losses.front() == zero2.losses.front());
  }
}

// LAMB sums norms of whole tensors over ranks in a pass before the updates. Muon moves whole matrices to one rank and
// back. Adafactor sums rows and columns.
TEST_CASE("LAMB, Muon and Adafactor on CUDA ranks take the step of one CPU rank, with the same bits for ZeRO 0 and 1") {
  require_device();
  const GlobalState start = train(Family::llama, {1, 1, {}}, 10, nullptr, {}).state;
  for (const char* optimizer : {"optimizer.type=lamb", "optimizer.type=muon", "optimizer.type=adafactor"}) {
    const auto run = [&](const Layout& layout, const Wrapping& wrapping) {
      Layout with_optimizer = layout;
      with_optimizer.overrides.push_back(optimizer);
      return train(Family::llama, with_optimizer, 1, &start, wrapping);
    };
    const Outcome zero0 = run({2, 2, {"parallel.zero=0"}}, on_cuda);
    CHECK(same_bits(zero0, run({2, 2, {"parallel.zero=1"}}, on_cuda)));
    const Difference d = difference(make_spec(config_of(Family::llama, {1, 1, {}}).model), run({1, 1, {}}, {}), zero0);
    INFO(optimizer << ", moment " << d.first_moment << " of " << d.moment_of << ", weight " << d.weight << " of "
                   << d.weight_of);
    CHECK(d.small());
  }
}

// Codes differ between the devices where rounding crosses a border.
TEST_CASE("moments of 8 bits on CUDA ranks are those of CPU ranks, with the same bits for ZeRO 0 and 1") {
  require_device();
  const auto run = [&](const char* zero, const char* precision, const Wrapping& wrapping) {
    return train(Family::llama, {1, 2, {zero, precision, "optimizer.type=adamw-8bit", "model.num_layers=1"}}, 2,
                 nullptr, wrapping);
  };
  const Outcome zero0 = run("parallel.zero=0", "precision.compute=fp32", on_cuda);
  CHECK(same_bits(zero0, run("parallel.zero=1", "precision.compute=fp32", on_cuda)));
  const Outcome cpu = run("parallel.zero=0", "precision.compute=fp32", {});
  for (const auto& [name, values] : cpu.state) {
    int64_t different = 0;
    for (size_t i = 0; i < values.size(); ++i)
      different += std::abs(values[i] - zero0.state.at(name)[i]) > 2e-3F * std::abs(values[i]) + 1e-4F ? 1 : 0;
    INFO(name << ": " << different << " of " << values.size());
    CHECK(different <= std::ssize(values) / 100 + 1);
  }
  if (some_cases()) return;
  CHECK(same_bits(run("parallel.zero=2", "precision.compute=bf16-pure", on_cuda),
                  run("parallel.zero=3", "precision.compute=bf16-pure", on_cuda)));
}

// The scale is too large for the first steps: ranks that disagreed about that would diverge.
TEST_CASE("CUDA ranks seek the loss scale of fp16 together") {
  require_device();
  const auto run = [&](int zero) {
    return train(Family::llama,
                 {2,
                  2,
                  {"precision.compute=fp16", "run.device=cuda", "precision.loss_scale=16777216", "model.num_layers=1",
                   fmt::format("parallel.zero={}", zero)}},
                 6);
  };
  const Outcome zero0 = run(0), zero1 = run(1);
  CHECK_FALSE(std::isfinite(zero0.norms.front()));
  CHECK(std::isfinite(zero0.norms.back()));
  CHECK(zero0.norms.back() == zero1.norms.back());
  CHECK(zero0.losses == zero1.losses);
  CHECK(first_difference(zero0.state, zero1.state) == "");
  CHECK(zero0.torn + zero1.torn == "");
}

TEST_CASE("gradients of CUDA ranks summed in bf16 are the same for every ZeRO stage, and not those summed in f32") {
  require_device();
  // With one micro-batch, ZeRO 2 adds nothing to its sum.
  const auto run = [&](int zero, const char* reduce) {
    return train(Family::gpt2, {1, 2, {"batch.micro=4", reduce, fmt::format("parallel.zero={}", zero)}}, 1);
  };
  const Outcome rounded = run(0, "precision.reduce=bf16");
  for (const int zero : {1, 2, 3}) CHECK(same_bits(rounded, run(zero, "precision.reduce=bf16")));
  CHECK(first_difference(rounded.state, run(0, "precision.reduce=fp32").state) != "");
}

TEST_CASE("methods that save memory take what is planned on the device, and have the bits of keeping all",
          "[methods]") {
  require_device();
  const Target target = make_cuda_backend(0)->target();
  for (const MethodCase& method : method_cases()) {
    INFO(method.name());
    const RunConfig config = method.config(target);
    Wrapping wrapping = on_cuda;
    check_touched_after(wrapping, config, method.world_size());
    const Outcome outcome = train_on_ranks(config, method.world_size(), 2, nullptr, 0, wrapping);
    if (!method.has_bits_of_keeping_all(target)) continue;
    require_same(outcome, train_on_ranks(method.config_that_keeps_all(), method.world_size(), 2, nullptr, 0, on_cuda));
  }
}

TEST_CASE("a step on the device has the events of its plan, copies too") {
  require_device();
  const Layout layouts[] = {{1, 1, {}},
                            {1, 2, {"parallel.zero=2", "precision.compute=bf16", "optimizer.type=lamb"}},
                            {2, 1, {"precision.compute=bf16", "optimizer.type=muon"}},
                            {1, 2, {"parallel.zero=1", "optimizer.type=adamw-8bit"}},
                            {1, 2, {"parallel.zero=0", "precision.compute=bf16-pure", "precision.gradients=bf16"}},
                            {1, 1, {"memory.offload_activations=all", "batch.micro=2"}},
                            {1, 2, {"parallel.zero=3", "optimizer.type=adafactor"}},
                            {2, 1, {"parallel.sequence=true", "memory.recompute=block"}},
                            {1,
                             2,
                             {"model.bias=false", "parallel.zero=1", "memory.recompute=block",
                              R"(model.moe={"experts":4,"top_k":2,"ffn_hidden_size":64,"shared":1})"}}};
  for (const Layout& layout : layouts) {
    INFO(layout.name());
    RunConfig config = config_of(Family::gpt2, layout);
    for (const RankEvents& rank : events_on_ranks(config, layout.world_size(), [] { return make_cuda_backend(0); })) {
      const EventWords ran = in_words(rank.profile.log);
      REQUIRE(ran.size() == rank.planned.size());
      for (size_t part = 0; part < ran.size(); ++part) REQUIRE(ran[part] == rank.planned[part]);
      int64_t beside = 0;
      for_each_part(rank.profile, [&](const StepPart& part) {
        const bool of_record = part.action != nullptr && part.action->kind > ActionKind::load;
        for (const Event& event : part.events) beside += event.beside_ops && !of_record ? event.bytes_moved : 0;
      });
      CHECK(beside == num_samples / layout.data * (2 * 4 * config.model.sequence_length + 8));
    }
  }
}
