// A profiled step has the same results, and its profile has the planned events, with times.
#include <cstring>
#include <string>
#include <vector>

#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "step/plan_step.h"
#include "step/step_profiler.h"

namespace test_step_profile {

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

// Configs that cover both families and dtypes, dropout, several micro-batches, recomputation.
std::vector<RunConfig> configs() {
  std::vector<RunConfig> list;
  for (const Family family : {Family::gpt2, Family::llama})
    for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"})
      for (const char* recompute : {"memory.recompute=none", "memory.recompute=block"})
        list.push_back(small_config(family, {"model.dropout=0.1", "batch.micro=2", precision, recompute}));
  return list;
}

struct Profiled {
  StepPlan plan;
  StepProfile profile;
  std::vector<std::vector<float>> weights;
  std::vector<double> losses;
};

constexpr int64_t num_steps = 4;

// `profiled_step` 0: none, on the plain backend.
Profiled train_steps(const RunConfig& config, int64_t profiled_step) {
  const auto device = make_cpu_backend(2);
  testing::OneRank rank(config);
  StepProfiler profiler(*device, rank.groups);
  Backend& backend = profiled_step > 0 ? profiler.backend() : *device;
  Profiled result{.plan = plan_rank({config, device->target()}), .profile = {}, .weights = {}, .losses = {}};
  TrainingStep step(result.plan.design, backend, rank.groups);
  step.initialize();
  RandomBatches batches(config);
  for (int64_t n = 1; n <= num_steps; ++n) {
    const bool profiled = n == profiled_step;
    if (profiled) profiler.start();
    result.losses.push_back(step.run(1e-3, batches, profiled ? &profiler : nullptr).loss);
    if (profiled) result.profile = profiler.finish(n, 0, {config.precision.compute, 1e12, 1e10}, step.design().stages);
  }
  for (const auto& tensor : step.state()) result.weights.emplace_back(tensor.weight, tensor.weight + tensor.count());
  return result;
}

}  // namespace

TEST_CASE("a profiled step gives the bits of one that is not") {
  for (const RunConfig& config : configs()) {
    const Profiled plain = train_steps(config, 0);
    const Profiled profiled = train_steps(config, 3);
    CHECK(plain.losses == profiled.losses);
    REQUIRE(plain.weights.size() == profiled.weights.size());
    for (size_t i = 0; i < plain.weights.size(); ++i) {
      INFO(profiled.plan.design->spec->tensors[i].name);
      REQUIRE(std::memcmp(plain.weights[i].data(), profiled.weights[i].data(),
                          plain.weights[i].size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("a profile counts calls, FLOPs and bytes as the plan does, and moves a step's data once") {
  for (const RunConfig& config : configs()) {
    const Profiled run = train_steps(config, 2);
    const OpTable seen = op_table(run.profile.log);
    for (size_t i = 0; i < num_ops; ++i) {
      INFO(op_names[i]);
      CHECK(seen[i].calls == run.plan.ops[i].calls);
      CHECK((seen[i].model_flops == run.plan.ops[i].model_flops));
      CHECK((seen[i].executed_flops == run.plan.ops[i].executed_flops));
      CHECK((seen[i].bytes_moved == run.plan.ops[i].bytes_moved));
    }
    int64_t uploaded = 0;
    int64_t downloaded = 0;
    for_each_part(run.profile, [&](const StepPart& part) {
      for (const Event& event : part.events) {
        if (event.kind == Event::Kind::copy && event.name == "upload" && part.action != nullptr)
          uploaded += event.bytes_moved;
        if (event.kind == Event::Kind::copy && event.name == "download") downloaded += event.bytes_moved;
        CHECK(event.kind <= Event::Kind::copy);  // a single rank waits for nobody
      }
    });
    // Tokens and targets of 4 bytes, sample numbers of 8; for the norm the rank's wish to stop.
    CHECK(uploaded == config.batch.global * (2 * 4 * config.model.sequence_length + 8) + 8);
    CHECK(downloaded == static_cast<int64_t>(sizeof(StepState) + sizeof(double)));
  }
}

TEST_CASE("a profile holds every action of the schedule in order, and every event lies in its action") {
  for (const RunConfig& config : configs()) {
    const Profiled profiled = train_steps(config, num_steps);
    const StepProfile& profile = profiled.profile;
    const Schedule& schedule = profiled.plan.design->training->schedule;
    double previous_end = profile.start_seconds;
    size_t action = 0;
    for_each_part(profile, [&](const StepPart& part) {
      if (part.action != nullptr) {
        REQUIRE(part.action->kind == schedule.actions[action].kind);
        REQUIRE(part.action->unit == schedule.actions[action].unit);
        REQUIRE(part.action->micro_batch == schedule.actions[action].micro_batch);
        ++action;
        REQUIRE(part.time.start_seconds >= previous_end);
      }
      for (size_t i = 0; i < part.events.size(); ++i) {
        REQUIRE(part.times[i].start_seconds >= previous_end);
        REQUIRE(part.times[i].end_seconds > part.times[i].start_seconds);
        REQUIRE_FALSE(part.events[i].shape.empty());
        previous_end = part.times[i].end_seconds;
      }
      if (part.action != nullptr) {
        REQUIRE(part.time.end_seconds >= previous_end);
        previous_end = part.time.end_seconds;
      }
    });
    CHECK(action == schedule.actions.size());
    CHECK(profile.end_seconds >= previous_end);
  }
}

}  // namespace test_step_profile
