// Plans of GPUs whose optimizer state lies on the host or on drives: bytes by place and link, and needed bandwidths.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "fit/choose_step.h"
#include "model_fixture.h"
#include "planner/dry_run.h"
#include "planner/layout_estimate.h"
#include "planner/layouts.h"
#include "planner/predict.h"
#include "planner/search.h"

namespace gptrain::test_link_needs {
namespace {

using testing::Family;
using testing::small_config;

using Overrides = std::vector<std::string>;

// Returns a config of fp16 with master weights.
RunConfig config_with(Overrides overrides, int64_t ranks = 1) {
  overrides.insert(overrides.begin(), {"run.device=auto", "precision.compute=fp16", "batch.global=8", "batch.micro=2",
                                       "model.hidden_size=512", "model.num_heads=8"});
  return small_config(Family::gpt2, overrides, ranks);
}

const Overrides on_host = {"memory.offload_optimizer=host"};
const Overrides all_on_host = {"memory.offload_optimizer=host", "memory.offload_parameters=host",
                               "memory.offload_gradients=host"};
const Overrides all_on_disk = {"memory.offload_optimizer=disk", "memory.offload_parameters=disk",
                               "memory.offload_gradients=disk", "memory.disk_path=/scratch"};

PlannedRun plan_on_v100(const RunConfig& config, int64_t ranks = 1) {
  const Machine machine = machine_named({"v100-32g", "dgx-2", ""}, true);
  return plan_run(config, {planned_target(machine, 0, ranks), machine}, ranks, LoggedRanks::of_stages);
}

int64_t on(const PlannedRun& run, MemoryPlace place, MemoryClass c) {
  return run.world.largest.arenas.on(place)[static_cast<size_t>(c)];
}

// Checks that `bytes` are those of the elements, padding of up to a tenth included.
void check_bytes(int64_t bytes, int64_t elements, int64_t each) {
  CHECK(bytes >= elements * each);
  CHECK(10 * bytes <= 11 * elements * each);
}

}  // namespace

TEST_CASE("with optimizer state on the host a GPU keeps weights and gradients") {
  const PlannedRun run = plan_on_v100(config_with(on_host)), plain = plan_on_v100(config_with({}));
  const int64_t elements = run.world.spec.parameters();
  check_bytes(on(run, MemoryPlace::pinned_host, MemoryClass::master), elements, 4);
  check_bytes(on(run, MemoryPlace::pinned_host, MemoryClass::optimizer), elements, 8);
  CHECK(on(run, MemoryPlace::device, MemoryClass::master) == 0);
  CHECK(on(run, MemoryPlace::device, MemoryClass::optimizer) == 0);
  CHECK(on(run, MemoryPlace::device, MemoryClass::gradients) == on(plain, MemoryPlace::device, MemoryClass::gradients));
  check_bytes(run.links.to_host, elements, 4);
  check_bytes(run.links.to_device, elements, 2);
  CHECK(run.links.read + run.links.written == 0);
  CHECK(run.links.moved_by_updates >= 28 * elements);
  CHECK(plain.links.all() == 0);
}

TEST_CASE("with all parameters on the host or on drives a GPU has parts of a few layers") {
  const RunConfig config = config_with(all_on_host);
  const PlannedRun run = plan_on_v100(config), disk = plan_on_v100(config_with(all_on_disk));
  const int64_t elements = run.world.spec.parameters();
  for (const auto& [c, each] : {std::pair(MemoryClass::master, 4), std::pair(MemoryClass::optimizer, 8),
                                std::pair(MemoryClass::weights, 2), std::pair(MemoryClass::gradients, 4)}) {
    check_bytes(on(run, MemoryPlace::pinned_host, c), elements, each);
    CHECK(on(disk, MemoryPlace::disk, c) == on(run, MemoryPlace::pinned_host, c));
  }
  CHECK(on(disk, MemoryPlace::device, MemoryClass::optimizer) == 0);
  CHECK(on(disk, MemoryPlace::pinned_host, MemoryClass::optimizer) > 0);  // a few units at a time
  // Four micro-batches: their gradients go down each time, and all but the first come up before they are added to.
  CHECK(run.links.to_host == disk.links.to_host);
  CHECK(run.links.to_device == disk.links.to_device);
  check_bytes(disk.links.written, elements, 12 + 2 + 4 * 4);
  CHECK(disk.links.read > 12 * elements);
  CHECK(disk.step.pipeline.seconds > run.step.pipeline.seconds);
}

TEST_CASE("data ranks keep a piece each on the host") {
  const PlannedRun one = plan_on_v100(config_with(all_on_host)),
                   four = plan_on_v100(config_with({"memory.offload_optimizer=host", "memory.offload_parameters=host",
                                                    "memory.offload_gradients=host", "parallel.zero=3"},
                                                   4),
                                       4);
  for (const MemoryClass c : {MemoryClass::master, MemoryClass::optimizer, MemoryClass::weights})
    check_bytes(4 * on(four, MemoryPlace::pinned_host, c), one.world.spec.parameters(),
                c == MemoryClass::master      ? 4
                : c == MemoryClass::optimizer ? 8
                                              : 2);
}

TEST_CASE("the formula of ZeRO-Infinity gives the paper's efficiencies") {
  Machine machine = machine_named({"v100-32g", "dgx-2", ""}, true);
  machine.device.half = {70e12, 1};
  machine.cluster.host_links_bytes_per_second = 0;
  RunConfig config = config_with(all_on_host);
  config.model.sequence_length = 1024;
  config.model.hidden_size = 2048;
  config.batch.micro = 1;
  config.memory.offload = offload::all;
  const auto efficiency = [&](double link) {
    machine.cluster.host_bytes_per_second = link;
    return link_needs(config, config.memory, machine, 1);
  };
  const std::vector<LinkNeed> at_70 = efficiency(70e9);
  CHECK(at_70[0].flops_per_byte == 1024);
  CHECK(at_70[0].efficiency == Approx(0.506).epsilon(1e-3));
  CHECK(efficiency(2e9)[2].efficiency == Approx(0.584).epsilon(1e-3));
  CHECK(efficiency(4e9)[2].efficiency == Approx(0.737).epsilon(1e-3));
  config.batch.micro = 2;
  config.batch.accumulation = 1;
  machine.cluster.host_memory_bytes_per_second = 1.5e12;
  machine.cluster.host_memory_sustained = 1;
  CHECK(efficiency(70e9)[1].efficiency == Approx(0.916).epsilon(1e-3));
  // The needed bandwidth gives the efficiency that it is for.
  for (const LinkNeed& need : efficiency(70e9)) {
    const double b = need.needed * need.flops_per_byte;
    CHECK(b / (b + 70e12) == Approx(LinkNeed::aim));
  }
}

TEST_CASE("a CPU, and Adafactor on a GPU of this machine are refused") {
  const auto refusal = [](const RunConfig& config, const Target& target) {
    try {
      choose_step({config, target, 1}, 0);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Target gpu = planned_target(machine_named({"v100-32g", "dgx-2", ""}, true), 0, 1);
  Target cpu;
  CHECK(refusal(config_with(on_host), gpu).empty());
  CHECK(refusal(config_with(on_host), cpu).find("on a CPU the state lies in the host's memory anyway") !=
        std::string::npos);
  const Overrides half = {"memory.offload_optimizer=host", "memory.offload_optimizer_share=0.5"};
  CHECK(refusal(config_with(half), gpu).empty());
  Overrides lamb = {"memory.offload_optimizer=host", "optimizer.type=lamb"};
  gpu.identity = "this one";
  CHECK(refusal(config_with(on_host), gpu).empty());
  CHECK(refusal(config_with(lamb), gpu).empty());
  const Overrides adafactor = {"memory.offload_optimizer=host", "optimizer.type=adafactor"};
  CHECK(refusal(config_with(adafactor), gpu).find("in plans for a named GPU only") != std::string::npos);
  lamb.push_back("memory.offload_optimizer_share=0.5");
  gpu.identity = "";
  CHECK(refusal(config_with(lamb), gpu).find("must be 1 on a GPU with optimizer.type = \"lamb\"") != std::string::npos);
}

TEST_CASE("a search keeps what is away, and its bounds stay below whole plans") {
  const Machine machine = machine_named({"v100-32g", "dgx-2", ""}, true);
  const Target target = planned_target(machine, 0, 4);
  for (const Overrides& places : {on_host, all_on_host, all_on_disk}) {
    Overrides overrides = places;
    overrides.insert(overrides.end(), {"model.num_layers=8", "model.hidden_size=1024", "model.num_heads=8"});
    const RunConfig config = config_with(overrides);
    LayoutEstimator estimator(config, machine, target);
    const LayoutSearch found = search_layouts(config, machine, {.gpus = 4, .top = 4});
    REQUIRE(!found.best.empty());
    for (const LayoutResult& result : found.best) {
      const LayoutResult whole = predict_layout(checked_layout(config, result.layout), machine, result.layout, 0);
      CHECK(whole.host_bytes > 0);
      CHECK(estimator.least_bytes(result.layout, target.memory_bytes).bytes <= whole.peak_bytes);
      CHECK(estimator.least_seconds(result.layout) <= 1.05 * whole.step_seconds);
      if (places != on_host && result.layout.data > 1) CHECK(result.layout.zero == 3);
    }
  }
}

}  // namespace gptrain::test_link_needs
