// Pipeline schedules: their orders are complete, end, and have the published bubbles and memory.
#include <algorithm>
#include <string>
#include <vector>

#include "catch.h"
#include "schedule/pipeline/check_passes.h"
#include "schedule/pipeline/schedules.h"
#include "schedule/pipeline/simulate.h"

using namespace gptrain;

namespace {

using Lists = std::vector<std::vector<Pass>>;

const PipelineSchedule& named(std::string_view name) {
  const PipelineSchedule* schedule = find_pipeline_schedule(name);
  REQUIRE(schedule);
  return *schedule;
}

std::string text(const PipelineShape& shape) {
  return "p " + std::to_string(shape.stages) + " v " + std::to_string(shape.chunks_per_stage) + " m " +
         std::to_string(shape.micro_batches) + (shape.recompute ? " recompute" : "");
}

// Calls visit(shape) for each shape for which the schedule has an order.
template <typename Visit>
void for_shapes(const PipelineSchedule& schedule, Visit visit) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t v = 1; v <= 4; ++v) {
      if (v < schedule.least_chunks || (schedule.most_chunks > 0 && v > schedule.most_chunks)) continue;
      for (int32_t m = 1; m <= 20; ++m) visit(PipelineShape{.stages = p, .chunks_per_stage = v, .micro_batches = m});
    }
  }
}

// Times of a stage, divided evenly over its chunks.
PipelineTimes even(const PipelineShape& shape, double forward, double input, double weight) {
  const double chunk = 1.0 / shape.chunks_per_stage;
  return {.chunks = {{.forward = forward * chunk,
                      .backward = (input + weight) * chunk,
                      .backward_input = input * chunk,
                      .backward_weight = weight * chunk}}};
}

PipelineSimulation simulate(const PipelineShape& shape, const PipelineSchedule& schedule, const PipelineTimes& times) {
  const PipelineSimulation simulation = simulate_passes(shape, schedule, schedule.passes(shape), times);
  REQUIRE(simulation.stalled == "");
  return simulation;
}

struct Costs {
  double forward, input, weight;
};

}  // namespace

TEST_CASE("every schedule's passes are whole, in order, and come to the end") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for_shapes(schedule, [&](PipelineShape shape) {
      for (const bool recompute : {false, true}) {
        shape.recompute = recompute;
        INFO(schedule.name << " " << text(shape));
        REQUIRE(check_passes(shape, schedule) == "");
      }
    });
  }
}

TEST_CASE("bubbles of pipelines are those of the closed formulas") {
  for (const Costs& costs : {Costs{1, 1, 1}, Costs{1, 2, 0.5}, Costs{3, 1, 1}, Costs{2, 3, 2}, Costs{1, 1.25, 0.75}}) {
    for (const std::string_view name : {"gpipe", "1f1b", "interleaved"}) {
      for_shapes(named(name), [&](const PipelineShape& shape) {
        if (shape.chunks_per_stage > 1 && shape.micro_batches % shape.stages != 0) return;
        INFO(name << " " << text(shape));
        const double bubble =
            simulate(shape, named(name), even(shape, costs.forward, costs.input, costs.weight)).bubble;
        REQUIRE(bubble ==
                Approx(double(shape.stages - 1) / (shape.chunks_per_stage * shape.micro_batches)).margin(1e-9));
      });
    }
    for_shapes(named("zero-bubble"), [&](const PipelineShape& shape) {
      if (shape.micro_batches < shape.stages) return;
      INFO(text(shape) << " F " << costs.forward << " B " << costs.input << " W " << costs.weight);
      const double idle = (shape.stages - 1) * (costs.forward + costs.input - costs.weight);
      const PipelineTimes times = even(shape, costs.forward, costs.input, costs.weight);
      for (const StageTimes& stage : simulate(shape, named("zero-bubble"), times).stages)
        REQUIRE(stage.idle == Approx(idle).margin(1e-9));
    });
  }
}

TEST_CASE("the V schedule of equal passes has no bubble but the way to the last stage") {
  for_shapes(named("zero-bubble-v"), [&](const PipelineShape& shape) {
    if (shape.micro_batches < shape.stages) return;
    INFO(text(shape));
    const PipelineTimes ticks = {.chunks = {PassTimes{.forward = 1, .backward_input = 1, .backward_weight = 1}}};
    // The last stage cannot begin before its first input has passed all earlier chunks.
    REQUIRE(simulate(shape, named("zero-bubble-v"), ticks).makespan == 6 * shape.micro_batches + shape.stages - 1);
  });
}

TEST_CASE("no pipeline schedule takes longer than 1F1B") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for_shapes(schedule, [&](const PipelineShape& shape) {
      const PipelineShape one = {.stages = shape.stages, .micro_batches = shape.micro_batches};
      for (const Costs& costs :
           {Costs{1, 1, 1}, Costs{1, 2, 1}, Costs{2, 2, 1}, Costs{2, 3, 2}, Costs{1, 1.25, 0.75}}) {
        INFO(schedule.name << " " << text(shape) << " F " << costs.forward << " B " << costs.input << " W "
                           << costs.weight);
        const double reference =
            simulate(one, named("1f1b"), even(one, costs.forward, costs.input, costs.weight)).makespan;
        const double makespan =
            simulate(shape, schedule, even(shape, costs.forward, costs.input, costs.weight)).makespan;
        REQUIRE(makespan <= reference * (1 + 1e-9));
      }
    });
  }
}

TEST_CASE("stages of a pipeline are idle at its ends only, whatever passes take") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for (const int32_t p : {2, 3, 4, 5, 8}) {
      for (const Costs& costs : {Costs{1, 1, 1}, Costs{1, 2, 1}, Costs{2, 2, 1}, Costs{1, 2, 2}, Costs{3, 4, 2}}) {
        INFO(schedule.name << " p " << p << " F " << costs.forward << " B " << costs.input << " W " << costs.weight);
        std::vector<double> idle;
        for (const int32_t m : {120, 240}) {
          const PipelineShape shape = {
              .stages = p, .chunks_per_stage = schedule.most_chunks == 1 ? 1 : 2, .micro_batches = m};
          const PipelineTimes times = even(shape, costs.forward, costs.input, costs.weight);
          idle.push_back(simulate(shape, schedule, times).stages[0].idle);
        }
        REQUIRE(idle[0] == Approx(idle[1]));
      }
    }
  }
}

TEST_CASE("interleaving with one chunk a stage is 1F1B") {
  for_shapes(named("1f1b"), [&](const PipelineShape& shape) {
    INFO(text(shape));
    REQUIRE(named("interleaved").passes(shape) == named("1f1b").passes(shape));
  });
}

TEST_CASE("interleaving leaves turns empty where the pipeline fills") {
  // With the empty turns in the last group, stages would be idle for half a unit longer.
  std::vector<double> idle;
  for (int32_t m = 4; m <= 8; ++m) {
    const PipelineShape shape = {.stages = 4, .chunks_per_stage = 2, .micro_batches = m};
    idle.push_back(simulate(shape, named("interleaved"), even(shape, 1, 1, 1)).stages[0].idle);
  }
  CHECK(idle == std::vector<double>{4.5, 7, 6, 5, 4.5});
}

TEST_CASE("activations in flight are those that each pipeline schedule is known for") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for_shapes(schedule, [&](PipelineShape shape) {
      const int32_t p = shape.stages, v = shape.chunks_per_stage, m = shape.micro_batches;
      shape.recompute = m % 2 == 0;
      const PipelineSimulation simulation = simulate(shape, schedule, even(shape, 1, 1, 1));
      for (int32_t i = 0; i < p; ++i) {
        INFO(schedule.name << " " << text(shape) << " stage " << i);
        const StageTimes& stage = simulation.stages[static_cast<size_t>(i)];
        if (schedule.name == "gpipe") REQUIRE(stage.most_in_flight == m);
        if (schedule.name == "1f1b") REQUIRE(stage.most_in_flight == std::min(p - i, m));
        if (schedule.name == "interleaved") {
          if (v > 1) REQUIRE(stage.most_in_flight <= std::min(m * v, (v - 1) * p + 2 * (p - 1 - i) + 1));
          // 1 + (p - 1) / (p v) times 1F1B's on the first stage, if there is enough work.
          if (v > 1 && i == 0 && m % p == 0 && m > p) REQUIRE(stage.most_in_flight == p * v + p - 1);
        }
        if (schedule.name == "varuna")
          REQUIRE(stage.most_in_flight == std::min(m, 1 + (p - 1 - i) * (shape.recompute ? 4 : 3)));
        if (schedule.name == "zero-bubble") {
          REQUIRE(stage.most_awaiting_gradient == std::min(p - i, m));
          REQUIRE(stage.most_in_flight <= std::min(p, m));
        }
        if (schedule.name == "zero-bubble-v") REQUIRE(stage.most_in_flight <= std::min(2 * p, 2 * m));
      }
    });
  }
}

TEST_CASE("a swapped, dropped, repeated or misplaced pass is found in each schedule") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    const PipelineShape shape = {
        .stages = 3, .chunks_per_stage = schedule.most_chunks == 1 ? 1 : 2, .micro_batches = 5};
    const Lists good = schedule.passes(shape);
    REQUIRE(check_passes(shape, schedule, good) == "");
    for (size_t stage = 0; stage < good.size(); ++stage) {
      for (size_t index = 0; index < good[stage].size(); ++index) {
        INFO(schedule.name << " stage " << stage << " pass " << index);
        Lists bad = good;
        bad[stage].erase(bad[stage].begin() + static_cast<std::ptrdiff_t>(index));
        REQUIRE(check_passes(shape, schedule, bad) != "");
        bad = good;
        bad[stage].push_back(good[stage][index]);
        REQUIRE(check_passes(shape, schedule, bad) != "");
        bad = good;
        bad[stage].erase(bad[stage].begin() + static_cast<std::ptrdiff_t>(index));
        bad[(stage + 1) % 3].push_back(good[stage][index]);
        REQUIRE(check_passes(shape, schedule, bad) != "");
        // Moves it to the position of the next pass of the same kind and chunk.
        for (size_t other = index + 1; other < good[stage].size(); ++other) {
          const Pass &a = good[stage][index], &b = good[stage][other];
          if (a.kind != b.kind || a.chunk != b.chunk || a.kind == PassKind::backward_input) continue;
          bad = good;
          std::swap(bad[stage][index], bad[stage][other]);
          REQUIRE(check_passes(shape, schedule, bad) != "");
          break;
        }
      }
    }
    Lists fewer = good;
    fewer.pop_back();
    CHECK(check_passes(shape, schedule, fewer) == "2 lists for 3 stages");
  }
}

TEST_CASE("faults of passes are told with their stage and pass") {
  const PipelineShape shape = {.stages = 2, .micro_batches = 2};
  const PipelineSchedule& whole = named("gpipe");
  const PipelineSchedule& split = named("zero-bubble");
  Lists bad = whole.passes(shape);
  std::swap(bad[1][0], bad[1][1]);
  CHECK(check_passes(shape, whole, bad) ==
        "stage 1, pass 0 (forward of micro-batch 1 through chunk 1): the next micro-batch is 0");
  bad = whole.passes(shape);
  std::rotate(bad[1].begin(), bad[1].begin() + 2, bad[1].begin() + 3);
  CHECK(
      check_passes(shape, whole, bad) ==
      "stage 1 waits forever at pass 0 (backward of micro-batch 0 through chunk 1) for the forward through chunk 1 on "
      "stage 1");
  bad = whole.passes(shape);
  std::swap(bad[0][0], bad[1][0]);
  CHECK(check_passes(shape, whole, bad) ==
        "stage 0, pass 0 (forward of micro-batch 0 through chunk 1): the chunk is on stage 1");
  bad = whole.passes(shape);
  bad[0].pop_back();
  CHECK(check_passes(shape, whole, bad) == "chunk 0 has no weight gradients of micro-batch 1");
  bad = split.passes(shape);
  std::swap(bad[0][2], bad[0][3]);
  CHECK(check_passes(shape, split, bad) ==
        "stage 0, pass 2 (backward_weight of micro-batch 0 through chunk 0): backward_input is not before it");
  CHECK(check_passes(shape, whole, split.passes(shape)) ==
        "stage 0, pass 2 (backward_input of micro-batch 0 through chunk 0): backwards are not split");
  CHECK(check_passes(shape, split, whole.passes(shape)) ==
        "stage 0, pass 2 (backward of micro-batch 0 through chunk 0): backwards are split");
  bad = whole.passes(shape);
  bad[1].front().micro_batch = 2;
  CHECK(check_passes(shape, whole, bad) ==
        "stage 1, pass 0 (forward of micro-batch 2 through chunk 1): there is no such pass");
  CHECK(check_passes({.stages = 2, .chunks_per_stage = 2}, whole) == "gpipe has no order for 2 chunks a stage");
}

TEST_CASE("lists that wait for each other are told") {
  // Stage 0 waits for a gradient before it sends the input from which the gradient is computed.
  const PipelineShape shape = {.stages = 2, .micro_batches = 2};
  const Pass f00{PassKind::forward, 0, 0}, f01{PassKind::forward, 0, 1}, f10{PassKind::forward, 1, 0},
      f11{PassKind::forward, 1, 1}, b00{PassKind::backward, 0, 0}, b01{PassKind::backward, 0, 1},
      b10{PassKind::backward, 1, 0}, b11{PassKind::backward, 1, 1};
  const Lists lists = {{f00, b00, f01, b01}, {f10, f11, b10, b11}};
  CHECK(check_passes(shape, named("1f1b"), lists) ==
        "stage 0 waits forever at pass 1 (backward of micro-batch 0 through chunk 0) for the gradient through chunk 1 "
        "on stage 1");
}

TEST_CASE("a stage that waits for a pass in no list is told") {
  const PipelineShape shape = {.stages = 3, .micro_batches = 2};
  Lists lists = named("gpipe").passes(shape);
  std::erase(lists[0], Pass{PassKind::forward, 0, 1});
  std::erase(lists[0], Pass{PassKind::backward, 0, 1});
  const PipelineSimulation simulation = simulate_passes(shape, named("gpipe"), lists, {.chunks = {PassTimes()}});
  CHECK(simulation.stalled ==
        "stage 1 waits forever at pass 1 (forward of micro-batch 1 through chunk 1) for the "
        "forward through chunk 0 on stage 0");
  CHECK(simulation.stages[1].passes.size() == 1);
}

TEST_CASE("chunks of one stage pass on without a transfer") {
  const PipelineShape shape = {.stages = 2, .chunks_per_stage = 2, .micro_batches = 1};
  const PipelineTimes times = {.chunks = {PassTimes()}, .transfer = 10};
  // Through the V to the last stage and back, forward and backward: two transfers each; round the stages three each.
  CHECK(simulate(shape, named("zero-bubble-v"), times).makespan == 9 + 4 * 10);
  CHECK(simulate(shape, named("interleaved"), times).makespan == 12 + 6 * 10);
}

TEST_CASE("a simulated pipeline has the times of one drawn by hand") {
  const PipelineShape shape = {.stages = 2, .micro_batches = 2};
  PipelineTimes times = {.chunks = {{.forward = 1, .backward = 2}, {.forward = 3, .backward = 4}}, .transfer = 0.5};
  const PipelineSimulation simulation = simulate(shape, named("1f1b"), times);
  const auto starts = [&](size_t stage) {
    std::vector<double> list;
    for (const PassTime& time : simulation.stages[stage].passes) list.push_back(time.start);
    return list;
  };
  CHECK(starts(0) == std::vector<double>{0, 1, 9, 16});          // F0 F1 B0 B1
  CHECK(starts(1) == std::vector<double>{1.5, 4.5, 8.5, 11.5});  // F0 B0 F1 B1
  CHECK(simulation.makespan == 18);
  CHECK(simulation.stages[0].busy == 6);
  CHECK(simulation.stages[0].idle == 12);
  CHECK(simulation.stages[1].busy == 14);
  CHECK(simulation.stages[1].idle == 4);
  CHECK(simulation.bubble == Approx(16.0 / 20));
  CHECK(simulation.stages[0].most_in_flight == 2);
  CHECK(simulation.stages[1].most_in_flight == 1);
}
