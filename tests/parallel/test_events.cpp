// Events of a real step are those of its plan, action by action; derived figures are their sums; planned times follow
// from lanes and waits.
#include <array>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <vector>

#include "catch.h"
#include "events.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "planner/rank_clock.h"
#include "report/formulas.h"
#include "step/plan_step.h"
#include "unit/named_target.h"

namespace test_events {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

struct Layout {
  Family family;
  int64_t tensor, data;
  std::vector<std::string> overrides;
  int64_t pipeline = 1;

  int64_t world_size() const { return tensor * data * pipeline; }
};

const std::string disk_path = "memory.disk_path=" + std::filesystem::temp_directory_path().string();

const Layout layouts[] = {
    {.family = Family::gpt2, .tensor = 1, .data = 1, .overrides = {"model.dropout=0.1", "data.mask_documents=true"}},
    {.family = Family::llama,
     .tensor = 1,
     .data = 1,
     .overrides = {"memory.recompute=every_nth", "memory.recompute_interval=2", "precision.compute=bf16"}},
    {.family = Family::llama, .tensor = 2, .data = 1, .overrides = {"memory.recompute=block"}},
    {.family = Family::gpt2,
     .tensor = 2,
     .data = 1,
     .overrides = {"parallel.sequence=true", "model.num_heads=6", "model.sequence_length=18"}},
    {.family = Family::gpt2,
     .tensor = 2,
     .data = 1,
     .overrides = {"parallel.sequence=true", "parallel.overlap_tensor=true", "model.num_heads=6",
                   "model.sequence_length=18"}},
    {.family = Family::llama, .tensor = 2, .data = 1, .overrides = {"parallel.overlap_tensor=true"}},
    {.family = Family::gpt2, .tensor = 1, .data = 2, .overrides = {"parallel.zero=0", "precision.reduce=bf16"}},
    {.family = Family::llama, .tensor = 1, .data = 2, .overrides = {"parallel.zero=1", "precision.compute=bf16"}},
    {.family = Family::gpt2, .tensor = 1, .data = 3, .overrides = {"parallel.zero=2"}},
    {.family = Family::llama,
     .tensor = 1,
     .data = 2,
     .overrides = {"parallel.zero=3", "precision.compute=bf16", "memory.recompute=block"}},
    {.family = Family::llama,
     .tensor = 2,
     .data = 1,
     .overrides = {"memory.recompute=selective", "parallel.sequence=true", "model.sequence_length=18"}},
    {.family = Family::gpt2,
     .tensor = 1,
     .data = 2,
     .overrides = {"memory.recompute=selective", "parallel.zero=3", "precision.compute=bf16"}},
    {.family = Family::gpt2,
     .tensor = 1,
     .data = 2,
     .overrides = {"parallel.zero=1", "precision.compute=bf16-pure", "precision.gradients=bf16"}},
    {.family = Family::llama,
     .tensor = 2,
     .data = 2,
     .overrides = {"parallel.zero=3", "parallel.sequence=true", "model.sequence_length=18"}},
    {.family = Family::gpt2, .tensor = 1, .data = 1, .overrides = {"memory.recompute=block"}, .pipeline = 2},
    {.family = Family::llama,
     .tensor = 2,
     .data = 1,
     .overrides = {"parallel.zero=0", "precision.compute=bf16", "memory.recompute=ffn"},
     .pipeline = 2},
    {.family = Family::gpt2,
     .tensor = 1,
     .data = 2,
     .overrides = {"memory.offload_optimizer=disk", disk_path, "parallel.zero=1", "precision.compute=bf16"}},
    {.family = Family::gpt2,
     .tensor = 1,
     .data = 1,
     .overrides = {"memory.offload_optimizer=disk", disk_path, "optimizer.type=lamb"},
     .pipeline = 2},
    {.family = Family::llama,
     .tensor = 1,
     .data = 2,
     .overrides = {"parallel.context=2", "parallel.zero=1", "memory.recompute=selective", "model.sequence_length=18"}},
};

RunConfig config_of(const Layout& layout) {
  std::vector<std::string> overrides = {"model.num_layers=4",
                                        "batch.global=12",
                                        "batch.micro=2",
                                        "model.hidden_size=48",
                                        fmt::format("parallel.tensor={}", layout.tensor),
                                        fmt::format("parallel.pipeline={}", layout.pipeline)};
  if (layout.family == Family::gpt2) overrides.emplace_back("model.num_heads=4");
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  return small_config(layout.family, overrides, layout.world_size());
}

Target gpu_of(int64_t ranks_per_node) {
  Target target = find_target("h100");
  target.ranks_per_node = static_cast<int>(ranks_per_node);
  return target;
}

// Returns a machine on which ops are as fast beside collectives as without.
Machine machine_of(int64_t gpus_per_node) {
  const DeviceProfile device = find_device("h100");
  Machine machine{device, find_cluster(device.cluster)};
  machine.device.slow_down_beside_traffic = 0;
  machine.cluster.gpus_per_node = gpus_per_node;
  return machine;
}

StepProfile profile_of(const RunConfig& config, const StepPlan& plan, const Machine& machine, int64_t world_size) {
  const EventTimes times(machine, config, config.run.threads, make_mesh(config, world_size), 0);
  return planned_profile(0, DType::f32, plan.log, target_of(machine.device, machine.cluster), times);
}

}  // namespace

TEST_CASE("every rank's step has the events of its plan, action by action") {
  for (const Layout& layout : layouts) {
    const std::vector<RankEvents> ranks =
        events_on_ranks(config_of(layout), layout.world_size(), [] { return make_cpu_backend(1); });
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      INFO("tensor " << layout.tensor << " data " << layout.data << " pipeline " << layout.pipeline << " "
                     << layout.overrides.front() << ", rank " << rank);
      const EventWords ran = in_words(ranks[rank].profile.log);
      REQUIRE(ran.size() == ranks[rank].planned.size());
      for (size_t part = 0; part < ran.size(); ++part) {
        INFO("part " << part);
        REQUIRE(ran[part] == ranks[rank].planned[part]);
      }
      for_each_part(ranks[rank].profile, [&](const StepPart& part) {
        for (const TimeSpan& time : part.times) REQUIRE(time.seconds() > 0);
      });
    }
  }
}

TEST_CASE("the model FLOPs of all events are those of the closed formula, and repeats share blocks") {
  for (const Family family : {Family::gpt2, Family::llama}) {
    const RunConfig config = small_config(family, {"model.num_layers=7", "batch.global=40", "batch.micro=2",
                                                   "memory.recompute=block", "run.device=auto"});
    const StepPlan plan = plan_rank({config, gpu_of(8)});
    Flops model_flops = 0;
    size_t events = 0;
    const StepProfile profile = profile_of(config, plan, machine_of(8), 1);
    for_each_part(profile, [&](const StepPart& part) {
      for (const Event& event : part.events) model_flops += event.model_flops;
      events += part.events.size();
    });
    CHECK((model_flops == model_flops_formula(config.model, config.batch.global)));
    CHECK(plan.log.actions.size() == plan.design->training->schedule.actions.size());
    CHECK(plan.log.blocks.size() < 40);
    CHECK(events > 100 * plan.log.blocks.size());
  }
}

TEST_CASE("a GPU's micro-batches are uploaded beside its ops, and are copied among them") {
  const RunConfig config = small_config(Family::gpt2, {"batch.micro=2", "run.device=auto"});
  const StepPlan plan = plan_rank({config, gpu_of(8)});
  int64_t beside = 0;
  int64_t among = 0;
  for_each_part(profile_of(config, plan, machine_of(8), 1), [&](const StepPart& part) {
    for (const Event& event : part.events) {
      if (part.action == nullptr || event.kind != Event::Kind::copy) continue;
      if (event.beside_ops) {
        beside += event.bytes_moved;
      } else if (event.name == "copy_among_ops") {
        among += event.bytes_moved;
      }
    }
  });
  CHECK(beside == config.batch.global * (2 * 4 * config.model.sequence_length + 8));
  CHECK(among == config.batch.accumulation * micro_batch_shape(config).bytes());
}

TEST_CASE("planned collectives run on their lanes beside the ops, which wait for those that have not ended") {
  const RunConfig config =
      config_of({.family = Family::gpt2, .tensor = 1, .data = 2, .overrides = {"parallel.zero=3", "run.device=auto"}});
  const StepPlan plan = plan_rank({config, gpu_of(8), 2}, 0);
  const Machine machine = machine_of(8);
  const StepProfile profile = profile_of(config, plan, machine, 2);
  const EventTimes known(machine, config, config.run.threads, make_mesh(config, 2), 0);
  double ops_end = 0;
  double lanes_seconds = 0;
  double waits_seconds = 0;
  double ops_seconds = 0;
  std::array<double, num_lanes> lane_end{};
  for_each_part(profile, [&](const StepPart& part) {
    for (size_t i = 0; i < part.events.size(); ++i) {
      const Event& event = part.events[i];
      const TimeSpan& time = part.times[i];
      if (event.kind == Event::Kind::collective) {
        // Starts in order on its lane, and not before it is issued.
        CHECK(time.start_seconds >= lane_end[static_cast<size_t>(event.channel.lane)]);
        CHECK(time.start_seconds >= ops_end);
        CHECK(time.seconds() == Approx(known.seconds_of(event)));
        CHECK(time.seconds() > static_cast<double>(event.sent_bytes) / machine.cluster.link_bytes_per_second);
        lane_end[static_cast<size_t>(event.channel.lane)] = time.end_seconds;
        lanes_seconds += time.seconds();
        continue;
      }
      if (event.beside_ops) continue;
      CHECK(time.start_seconds >= ops_end);
      ops_end = time.end_seconds;
      (event.kind == Event::Kind::wait ? waits_seconds : ops_seconds) += time.seconds();
    }
  });
  CHECK(lanes_seconds > 0);
  CHECK(waits_seconds > 0);
  CHECK(waits_seconds < lanes_seconds);  // some of it is hidden
  CHECK(profile.seconds() == Approx(ops_seconds + waits_seconds).epsilon(0.01));
  // Infinitely fast links: no waits.
  Machine quick = machine_of(1);
  quick.cluster.nic_bytes_per_second = INFINITY;
  quick.cluster.nic_latency_seconds = 0;
  const StepProfile without = profile_of(config, plan, quick, 2);
  CHECK(without.seconds() == Approx(ops_seconds).epsilon(0.01));
  // Without rates an event takes a microsecond.
  const StepPlan plain = plan_rank({config, this_machine(1), 2}, 0);
  for_each_part(planned_profile(0, DType::f32, plain.log, this_machine(1), EventTimes()), [](const StepPart& part) {
    for (size_t i = 0; i < part.events.size(); ++i) {
      if (part.events[i].kind != Event::Kind::wait) CHECK(part.times[i].seconds() == Approx(1e-6));
    }
  });
}

}  // namespace test_events
