// A program needs its buffers only from their first action to their last: poisoning them outside changes no bit, in
// every schedule, also those that run weight gradients after later passes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/recompute_plan.h"
#include "model_fixture.h"
#include "ranks.h"
#include "some_cases.h"
#include "wrappers.h"

namespace test_lifetimes {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

constexpr int poison = 0xFF;  // NaN in every dtype

class ArenaRecorder final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  std::unique_ptr<DeviceMemory> allocate(int64_t bytes) override {
    auto memory = inner_.allocate(bytes);
    arenas.push_back(memory->data());
    return memory;
  }

  std::vector<std::byte*> arenas;  // in the order of MemoryClass
};

// Poisons each buffer before its first action and after its last. On the CPU an action's work is done when it ends.
class Spoiler final : public ActionObserver {
 public:
  Spoiler(const Program& program, const std::vector<std::byte*>& arenas) : program_(program), arenas_(arenas) {}

  bool before(const Action&) override {
    spoil(&Buffer::first);
    return true;
  }
  void after(const Action&) override {
    spoil(&Buffer::last);
    ++next_;
  }
  size_t actions() const { return next_; }
  size_t spoilt() const { return spoilt_; }

 private:
  void spoil(int32_t Buffer::*end) {
    for (size_t i = 0; i < program_.schedule.buffers.size(); ++i) {
      const Buffer& buffer = program_.schedule.buffers[i];
      if (buffer.*end != static_cast<int32_t>(next_)) continue;
      const int64_t bytes =
          program_.bytes[static_cast<size_t>(buffer.kind)][static_cast<size_t>(std::max(buffer.unit, 0))];
      std::byte* const arena = arenas_[static_cast<size_t>(memory_class(buffer.kind))];
      if (bytes > 0) std::memset(arena + program_.offsets[i], poison, static_cast<size_t>(bytes));
      ++spoilt_;
    }
  }

  const Program& program_;
  const std::vector<std::byte*>& arenas_;
  size_t next_ = 0, spoilt_ = 0;
};

// Returns losses and norms of three steps, and the loss of an evaluation after them.
std::vector<double> train(const RunConfig& config, int64_t ranks, bool spoils) {
  std::vector<double> results;
  Wrapping wrapping;
  std::vector<ArenaRecorder*> recorders(static_cast<size_t>(ranks));
  wrapping.backend = [&](int64_t rank, Backend& inner) {
    auto backend = std::make_unique<ArenaRecorder>(inner);
    recorders[static_cast<size_t>(rank)] = backend.get();
    return backend;
  };
  std::vector<std::string> faults(static_cast<size_t>(ranks));
  on_ranks(config, ranks, nullptr, wrapping, [&](RankContext& rank) {
    const auto number = static_cast<size_t>(rank.groups.rank());
    RandomBatches batches(config, 0, rank.groups.sample_rank(), rank.groups.num_sample_ranks());
    const Program& program = *rank.plan.design->training;
    const auto named =
        static_cast<size_t>(std::count_if(program.schedule.buffers.begin(), program.schedule.buffers.end(),
                                          [](const Buffer& buffer) { return buffer.first >= 0; }));
    for (int step = 0; step < 3; ++step) {
      Spoiler spoiler(program, recorders[number]->arenas);
      const StepResult result = rank.step.run(1e-3, batches, spoils ? &spoiler : nullptr);
      if (spoils && (spoiler.actions() != program.schedule.actions.size() || spoiler.spoilt() != 2 * named))
        faults[number] = "not every buffer was spoilt";
      if (number > 0) continue;
      results.push_back(result.loss);
      results.push_back(result.grad_norm);
    }
    const double loss = rank.step.evaluate(1, batches);
    if (number == 0) results.push_back(loss);
  });
  for (const std::string& fault : faults) CHECK(fault == "");
  return results;
}

}  // namespace

TEST_CASE("buffers of every pipeline schedule may be spoilt before their first action and after their last", "[long]") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const Family family : {Family::gpt2, Family::llama}) {
        if (some_cases() && zero % 2 != (family == Family::gpt2 ? 0 : 1)) continue;
        // Schedules that split backward run weight gradients after later passes.
        const int64_t stages = schedule.least_chunks > 1 ? 2 : 3;
        std::vector<std::string> overrides = {"model.num_layers=6",
                                              "model.num_heads=4",
                                              "model.num_kv_heads=4",
                                              "model.hidden_size=24",
                                              "model.ffn_hidden_size=28",
                                              "model.sequence_length=10",
                                              "batch.micro=1",
                                              "batch.global=10",
                                              "model.dropout=0.1",
                                              fmt::format("parallel.zero={}", zero),
                                              fmt::format("parallel.pipeline={}", stages),
                                              fmt::format("parallel.pipeline_schedule={}", schedule.name)};
        if (zero % 2 == 1) overrides.push_back("precision.compute=bf16");
        if (family == Family::llama) overrides.push_back("memory.recompute=block");
        if (family == Family::llama && zero > 0) overrides.push_back("precision.reduce=bf16");
        INFO(schedule.name << " zero " << zero << (family == Family::gpt2 ? " gpt2" : " llama, recompute"));
        const RunConfig config = small_config(family, overrides, 2 * stages);
        const std::vector<double> spoilt = train(config, 2 * stages, true);
        for (const double value : spoilt) CHECK(std::isfinite(value));
        CHECK(spoilt == train(config, 2 * stages, false));
      }
    }
  }
}

TEST_CASE(
    "buffers of units recomputed with units before them may be spoilt before their first action and after their last") {
  for (const char* const schedule : {"1f1b", "zero-bubble"}) {
    for (const int zero : {0, 3}) {
      const std::vector<std::string> overrides = {"model.num_layers=8",
                                                  "model.num_heads=4",
                                                  "model.num_kv_heads=4",
                                                  "model.hidden_size=24",
                                                  "model.ffn_hidden_size=28",
                                                  "model.sequence_length=10",
                                                  "batch.micro=1",
                                                  "batch.global=6",
                                                  "model.dropout=0.1",
                                                  "parallel.pipeline=2",
                                                  fmt::format("parallel.zero={}", zero),
                                                  fmt::format("parallel.pipeline_schedule={}", schedule)};
      RunConfig config = small_config(Family::llama, overrides, 4);
      for (int32_t stage = 0; stage < 2; ++stage)
        config.memory.activation_budget = std::max(config.memory.activation_budget,
                                                   RecomputePlanner({config, this_machine(1), 4}, stage).least().bytes);
      const std::vector<double> saves_all = train(config, 4, false);
      config.memory.recompute = RecomputeKind::optimal;
      INFO(schedule << " zero " << zero);
      CHECK(train(config, 4, true) == saves_all);
    }
  }
}

}  // namespace test_lifetimes
