// The planned step of all stages, compared with a simulation of passes without actions, events and lanes.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "config/load.h"
#include "fit/choose_step.h"
#include "parallel/make_stages.h"
#include "planner/simulate_step.h"
#include "report/timeline_page.h"
#include "schedule/pipeline/simulate.h"
#include "step/plan_step.h"
#include "step/step_profile.h"
#include "unit/named_target.h"

namespace test_simulated_step {

using namespace gptrain;
using gptrain::testing::find_target;

namespace {

Machine usual_machine() {
  const DeviceProfile device = find_device("h100");
  return {device, find_cluster(device.cluster)};
}

// Infinitely fast links, so that only passes take time.
Machine free_links() {
  Machine machine = usual_machine();
  machine.cluster.link_bytes_per_second = INFINITY;
  machine.cluster.link_latency_seconds = 0;
  return machine;
}

struct Planned {
  std::vector<StepPlan> plans;
  std::vector<EventTimes> times;
  SimulatedStep step;
  PlannedPipeline pipeline;
};

std::vector<StageLog> logs_of(const Planned& planned) {
  std::vector<StageLog> logs;
  for (size_t i = 0; i < planned.plans.size(); ++i) logs.push_back({&planned.plans[i].log, planned.times[i]});
  return logs;
}

// Plans and simulates the first rank of each stage. `ranks_of_stage`: data ranks times tensor ranks.
Planned plan_stages(const RunConfig& config, const Machine& machine, int64_t ranks_of_stage = 1) {
  Planned planned;
  const int64_t num_stages = config.parallel.pipeline;
  const int64_t world_size = num_stages * ranks_of_stage;
  const Mesh mesh = make_mesh(config, world_size);
  for (int64_t stage = 0; stage < num_stages; ++stage) {
    const int64_t rank = mesh.first_rank_of_stage(stage);
    planned.plans.push_back(plan_rank({config, target_of(machine.device, machine.cluster), world_size}, rank));
    planned.times.emplace_back(machine, config, config.run.threads, mesh, rank);
  }
  planned.step = simulate_step(logs_of(planned), {.keeps_timeline = true});
  planned.pipeline = planned.step.pipeline;
  return planned;
}

// Products dominate everything else.
RunConfig staged_config(const std::string& schedule, int64_t stages, int64_t chunks, int64_t micro_batches,
                        const std::vector<std::string>& others = {}, int64_t ranks_of_stage = 1) {
  std::vector<std::string> overrides = {"batch.micro=32", "batch.accumulation=" + std::to_string(micro_batches),
                                        "parallel.pipeline=" + std::to_string(stages),
                                        "parallel.pipeline_schedule=" + schedule,
                                        "parallel.virtual_stages=" + std::to_string(chunks)};
  overrides.insert(overrides.end(), others.begin(), others.end());
  return parse_config(R"({"model": {"preset": "gpt2-124m", "tied_head": false}, "data": {"train": [{"path": "x"}]},
                          "precision": {"compute": "bf16"}, "optimizer": {"lr": 1e-3}, "run": {"steps": 1, "out": "x"}})",
                      overrides, "test", stages * ranks_of_stage);
}

// Returns the length of the second micro-batch's pass of a kind through a chunk; the first one makes copies and
// overwrites gradients.
double length_of(const PlannedPipeline& pipeline, PipelineBar::Kind kind, int32_t chunk, int32_t micro_batch) {
  for (const PlannedStage& stage : pipeline.stages) {
    double length = 0;
    for (const PipelineBar& bar : stage.bars) {
      if (bar.kind == kind && bar.chunk == chunk && bar.micro_batch == micro_batch) length += bar.time.seconds();
    }
    if (length > 0) return length;
  }
  return 0;
}

}  // namespace

TEST_CASE("a planned pipeline takes the time that its passes take by themselves") {
  struct Case {
    const char* schedule;
    int64_t chunks;
  };
  for (const Case& c : {Case{"1f1b", 1},
                        {"gpipe", 1},
                        {"interleaved", 2},
                        {"interleaved", 3},
                        {"varuna", 1},
                        {"zero-bubble", 1},
                        {"zero-bubble-v", 2}}) {
    for (const int64_t stages : {2, 3, 4}) {
      for (const int64_t micro_batches : {3, 5, 8}) {
        INFO(c.schedule << " of " << c.chunks << " chunks, " << stages << " stages, " << micro_batches);
        const RunConfig config = staged_config(c.schedule, stages, c.chunks, micro_batches);
        const Planned planned = plan_stages(config, free_links());
        const Stages layout = make_stages(config, 0, micro_batches, false);
        PipelineTimes times;
        times.chunks.clear();
        for (int32_t chunk = 0; chunk < layout.shape.chunks(); ++chunk) {
          const auto length = [&](PipelineBar::Kind kind) { return length_of(planned.pipeline, kind, chunk, 1); };
          const double weights = length(PipelineBar::Kind::backward_weight);
          times.chunks.push_back({.forward = length(PipelineBar::Kind::forward),
                                  .backward = length(PipelineBar::Kind::backward),
                                  .backward_input = length(PipelineBar::Kind::backward),
                                  .backward_weight = weights});
        }
        const auto passes = layout.schedule->passes(layout.shape);
        const PipelineSimulation simulated = simulate_passes(layout.shape, *layout.schedule, passes, times);
        double last = 0;
        for (const PlannedStage& stage : planned.pipeline.stages) {
          for (const PipelineBar& bar : stage.bars) {
            if (bar.kind != PipelineBar::Kind::update) last = std::max(last, bar.time.end_seconds);
          }
        }
        // Allows for small ops beside the passes (uploads), and a first micro-batch that reads no gradients.
        CHECK(std::abs(last - simulated.makespan) < 0.02 * simulated.makespan);
        CHECK(std::abs(planned.pipeline.bubble() - simulated.bubble) < 0.02);
      }
    }
  }
}

TEST_CASE("a step whose equal events are played once takes as long as one that is played in full") {
  struct Case {
    std::vector<std::string> settings;
    int64_t ranks_of_stage;
  };
  const Case cases[] = {{{}, 1},
                        {{"parallel.tensor=2"}, 2},
                        {{"parallel.tensor=4", "parallel.sequence=true", "memory.recompute=selective"}, 4},
                        {{"parallel.zero=1", "memory.recompute=block"}, 2},
                        {{"parallel.zero=2", "parallel.tensor=2"}, 4},
                        {{"parallel.zero=3"}, 2}};
  struct Order {
    const char* schedule;
    int64_t chunks;
  };
  const Order orders[] = {
      {"1f1b", 1}, {"interleaved", 2}, {"interleaved", 3}, {"zero-bubble", 1}, {"zero-bubble-v", 2}};
  std::mt19937 draw(20261127);  // NOLINT: the same cases in every run
  const auto below = [&](size_t end) { return draw() % end; };
  size_t tried = 0;
  for (int round = 0; round < 40; ++round) {
    const Case& c = cases[below(std::size(cases))];
    const Order& order = orders[below(std::size(orders))];
    const auto stages = static_cast<int64_t>(1 + below(4));
    const auto micro_batches = static_cast<int64_t>(1 + below(13));
    INFO(order.schedule << " of " << order.chunks << " chunks, " << stages << " stages, " << micro_batches << ": "
                        << (c.settings.empty() ? "" : c.settings.front()));
    std::optional<RunConfig> config;
    try {
      config = stages == 1
                   ? staged_config("1f1b", 1, 1, micro_batches, c.settings, c.ranks_of_stage)
                   : staged_config(order.schedule, stages, order.chunks, micro_batches, c.settings, c.ranks_of_stage);
    } catch (const Error&) {
      continue;  // a rule between keys
    }
    ++tried;
    Machine machine = below(2) == 0 ? usual_machine() : free_links();
    if (below(3) == 0) machine.cluster.link_bytes_per_second = 1e9;  // exposes communication
    const Planned planned = plan_stages(*config, machine, c.ranks_of_stage);
    const SimulatedStep& full = planned.step;
    const SimulatedStep once = simulate_step(logs_of(planned), {.most_in_full = 0, .keeps_timeline = true});
    const double allowed = 1e-12 * full.pipeline.seconds;
    const auto differ = [&](double a, double b) { return !(std::abs(a - b) <= allowed); };
    CHECK_FALSE(differ(full.pipeline.seconds, once.pipeline.seconds));
    CHECK_FALSE(differ(full.bubble_seconds, once.bubble_seconds));
    for (size_t i = 0; i < num_spendings; ++i) CHECK_FALSE(differ(full.critical[i], once.critical[i]));
    for (size_t lane = 0; lane < num_waited_lanes; ++lane) {
      CHECK_FALSE(differ(full.exposed_seconds[lane], once.exposed_seconds[lane]));
      CHECK_FALSE(differ(full.longest_waits[lane].seconds, once.longest_waits[lane].seconds));
    }
    for (size_t stage = 0; stage < full.pipeline.stages.size(); ++stage) {
      const PlannedStage& a = full.pipeline.stages[stage];
      const PlannedStage& b = once.pipeline.stages[stage];
      CHECK_FALSE(differ(a.busy_seconds, b.busy_seconds));
      CHECK_FALSE(differ(a.waiting_seconds, b.waiting_seconds));
      REQUIRE(a.bars.size() == b.bars.size());
      REQUIRE(a.not_before.size() == b.not_before.size());
      size_t different = 0;
      for (size_t i = 0; i < a.bars.size(); ++i)
        different += differ(a.bars[i].time.start_seconds, b.bars[i].time.start_seconds) ||
                     differ(a.bars[i].time.end_seconds, b.bars[i].time.end_seconds);
      for (size_t i = 0; i < a.not_before.size(); ++i) different += differ(a.not_before[i], b.not_before[i]);
      CHECK(different == 0);
    }
  }
  CHECK(tried > 20);
}

TEST_CASE("slow links lengthen a planned pipeline by what they carry") {
  const RunConfig config = staged_config("1f1b", 2, 1, 1);
  const Machine fast = free_links();
  Machine slow = fast;
  slow.cluster.link_bytes_per_second = 1e3 / slow.cluster.link_sustained;
  const double without = plan_stages(config, fast).pipeline.seconds;
  const double with = plan_stages(config, slow).pipeline.seconds;
  // One micro-batch: its output to the next stage and the gradient back, in sequence, and the sums of loss and norm.
  const double bytes = 2.0 * 32 * static_cast<double>(config.model.sequence_length * config.model.hidden_size);
  CHECK(with - without > 2 * bytes / 1e3);
  CHECK(with - without < 2.01 * bytes / 1e3);
}

TEST_CASE("a stage's actions never begin before what they wait for is there") {
  const RunConfig config = staged_config("zero-bubble", 3, 1, 6);
  const Planned planned = plan_stages(config, usual_machine());
  for (size_t stage = 0; stage < planned.plans.size(); ++stage) {
    const PlannedStage& times = planned.pipeline.stages[stage];
    const StepLog& log = planned.plans[stage].log;
    REQUIRE(times.not_before.size() == log.actions.size());
    const StepProfile profile = planned_profile(static_cast<int64_t>(stage), DType::f32, log, find_target("h100"),
                                                planned.times[stage], times.not_before);
    size_t waits = 0;
    for_each_part(profile, [&](const StepPart& part) {
      if (part.action == nullptr) return;
      const auto i = static_cast<size_t>(part.action - profile.log.actions.data());
      if (times.not_before[i] == 0) return;
      ++waits;
      CHECK(part.time.end_seconds >= times.not_before[i]);
    });
    CHECK(waits > 6);
    CHECK(profile.end_seconds <= planned.pipeline.seconds * (1 + 1e-12));
  }
}

TEST_CASE("the timeline has a row for each stage and a bar for each pass") {
  const Planned planned = plan_stages(staged_config("zero-bubble-v", 3, 2, 4), usual_machine());
  const std::string page = timeline_page(planned.pipeline, "a <model>", true);
  const auto count = [&](const std::string& text) {
    size_t found = 0;
    for (size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++found;
    return found;
  };
  CHECK(count(">stage ") == 3);
  CHECK(count("forward of micro-batch") == 4 * 6);
  CHECK(count("backward of micro-batch") == 4 * 6);
  CHECK(count("weight gradients of micro-batch") >= 4 * 5);
  CHECK(count("a &lt;model&gt;") == 2);
  CHECK(count("<model>") == 0);
}

}  // namespace test_simulated_step
