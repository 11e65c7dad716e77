// A profiled step is the same step, and its profile is what the plan wrote down, with times.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "catch.h"
#include "model_fixture.h"
#include "train/plan_step.h"
#include "train/step_profiler.h"

using namespace gptrain;
using gptrain::testing::Family;
using gptrain::testing::RandomBatches;
using gptrain::testing::small_config;

namespace {

// Every branch of the units: both families, both dtypes, dropout, several micro-batches, recomputation.
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

// `profiled_step` 0: the plain backend.
Profiled train_steps(const RunConfig& config, int64_t profiled_step) {
  const auto device = make_cpu_backend(2);
  StepProfiler profiler(*device);
  Backend& backend = profiled_step > 0 ? profiler.backend() : *device;
  Profiled result{.plan = plan_step(config, device->target()), .profile = {}, .weights = {}, .losses = {}};
  testing::OneRank rank(config);
  TrainingStep step(result.plan.design, backend, rank.groups);
  step.initialize();
  RandomBatches batches(config);
  for (int64_t n = 1; n <= num_steps; ++n) {
    const bool profiled = n == profiled_step;
    if (profiled) profiler.start();
    result.losses.push_back(step.run(1e-3, batches, profiled ? &profiler : nullptr).loss);
    if (profiled) result.profile = profiler.finish(n, 0, {config.precision.compute, 1e12, 1e10});
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
      INFO(profiled.plan.design->spec.tensors[i].name);
      REQUIRE(std::memcmp(plain.weights[i].data(), profiled.weights[i].data(),
                          plain.weights[i].size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("a profile counts calls, FLOPs and bytes as the plan does") {
  for (const RunConfig& config : configs()) {
    const Profiled run = train_steps(config, 2);
    CHECK(run.profile.waits.events.empty());
    CHECK(run.profile.lanes.empty());
    std::map<std::string_view, OpTotals> totals;
    for (const TimedEvent& event : run.profile.ops.events) {
      totals[event.name] += {1, event.model_flops, event.executed_flops, static_cast<Flops>(event.bytes_moved)};
    }
    for (size_t i = 0; i < num_ops; ++i) {
      INFO(op_names[i]);
      const OpTotals& planned = run.plan.ops[i];
      const OpTotals& seen = totals[op_names[i]];
      CHECK(seen.calls == planned.calls);
      CHECK((seen.model_flops == planned.model_flops));
      CHECK((seen.executed_flops == planned.executed_flops));
      CHECK((seen.bytes_moved == planned.bytes_moved));
    }
  }
}

TEST_CASE("a profile holds every action of the schedule in order, and every op lies in one of them") {
  for (const RunConfig& config : configs()) {
    const Profiled profiled = train_steps(config, num_steps);
    const StepProfile& profile = profiled.profile;
    const Schedule& schedule = profiled.plan.design->training->schedule;
    REQUIRE(profile.actions.size() == schedule.actions.size());
    double previous_end = profile.start_seconds;
    size_t op = 0;
    const std::vector<TimedEvent>& ops = profile.ops.events;
    for (size_t i = 0; i < profile.actions.size(); ++i) {
      const TimedAction& timed = profile.actions[i];
      CHECK(timed.action.kind == schedule.actions[i].kind);
      CHECK(timed.action.unit == schedule.actions[i].unit);
      CHECK(timed.action.micro_batch == schedule.actions[i].micro_batch);
      CHECK(timed.start_seconds >= previous_end);
      CHECK(timed.end_seconds >= timed.start_seconds);
      previous_end = timed.end_seconds;
      double previous_op_end = timed.start_seconds;
      for (; op < ops.size() && ops[op].end_seconds <= timed.end_seconds; ++op) {
        CHECK(ops[op].start_seconds >= previous_op_end);
        CHECK(ops[op].end_seconds > ops[op].start_seconds);
        CHECK_FALSE(ops[op].shape.empty());
        previous_op_end = ops[op].end_seconds;
      }
    }
    CHECK(op == ops.size());
    CHECK(profile.end_seconds >= previous_end);
  }
}
