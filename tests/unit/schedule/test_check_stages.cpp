// Schedules of all stages of a pipeline together: they match, and end without any buffering.
#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "catch.h"
#include "schedule/check_stages.h"
#include "schedule_fixture.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

using Make = Schedule (*)(const ScheduleOptions&);

// Chunks of one or two blocks in turn; the first also has the embedding, the last the head.
Stages stages_of(const PipelineSchedule& schedule, const PipelineShape& shape) {
  Stages stages;
  stages.schedule = &schedule;
  stages.shape = shape;
  stages.first_units = {0};
  int32_t units = 1;
  for (int32_t chunk = 0; chunk < shape.chunks(); ++chunk) {
    units += 1 + chunk % 2;
    stages.first_units.push_back(units);
  }
  ++stages.first_units.back();
  return stages;
}

std::vector<Schedule> schedules_of(ScheduleOptions options, const Stages& stages, Make make) {
  std::vector<bool> recomputed(static_cast<size_t>(stages.num_layers()), false);
  for (size_t unit = 1; stages.shape.recompute && unit + 1 < recomputed.size(); ++unit) recomputed[unit] = true;
  options.units = units_of(recomputed);
  options.micro_batches = stages.shape.micro_batches;
  options.stages = stages;
  std::vector<Schedule> schedules;
  for (int32_t stage = 0; stage < stages.shape.stages; ++stage) {
    options.stages.stage = stage;
    schedules.push_back(make(options));
  }
  return schedules;
}

std::vector<Schedule> training(const std::string& name, const PipelineShape& shape, ScheduleOptions options = {}) {
  const PipelineSchedule* const schedule = find_pipeline_schedule(name);
  REQUIRE(schedule != nullptr);
  return schedules_of(std::move(options), stages_of(*schedule, shape), training_schedule);
}

// Returns the first fault of a single stage, or of all stages together.
std::string fault_of(const std::vector<Schedule>& schedules) {
  for (const Schedule& schedule : schedules) {
    if (const std::string fault = check(schedule); !fault.empty())
      return "stage " + std::to_string(schedule.options.stages.stage) + ": " + fault;
  }
  return check_stages(schedules);
}

bool fits(const PipelineSchedule& schedule, int32_t chunks) {
  return chunks >= schedule.least_chunks && (schedule.most_chunks == 0 || chunks <= schedule.most_chunks);
}

template <typename Visit>
void for_shapes(const Visit& visit) {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for (int32_t p = 1; p <= 6; ++p) {
      for (int32_t v = 1; v <= 3; ++v) {
        if (!fits(schedule, v)) continue;
        for (int32_t m = 1; m <= 12; ++m)
          visit(schedule, PipelineShape{.stages = p, .chunks_per_stage = v, .micro_batches = m});
      }
    }
  }
}

std::string text(const PipelineSchedule& schedule, const PipelineShape& shape) {
  return std::string(schedule.name) + " p " + std::to_string(shape.stages) + " v " +
         std::to_string(shape.chunks_per_stage) + " m " + std::to_string(shape.micro_batches);
}

std::vector<size_t> indices_of(const Schedule& schedule, const std::function<bool(const Action&)>& wanted) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    if (wanted(schedule.actions[i])) indices.push_back(i);
  }
  return indices;
}

std::vector<size_t> indices_of(const Schedule& schedule, ActionKind kind) {
  return indices_of(schedule, [kind](const Action& action) { return action.kind == kind; });
}

}  // namespace

TEST_CASE("training schedules of all stages are sound, fit together and end without buffering", "[long]") {
  for_shapes([](const PipelineSchedule& schedule, PipelineShape shape) {
    for (const bool recompute : {false, true}) {
      shape.recompute = recompute;
      const Stages stages = stages_of(schedule, shape);
      for (const int32_t zero : {0, 1, 2, 3}) {
        for (const bool tied : {false, true}) {
          if (tied != recompute && shape.stages > 4) continue;
          // Every other combination also has the remaining options.
          const bool more = (zero + shape.micro_batches) % 2 == 0;
          const ScheduleOptions options{.flow = parameter_flow(zero),
                                        .narrow_sums = more,
                                        .tied_head = tied,
                                        .joint_backward = more,
                                        .keeps_narrow = more != tied};
          const std::string fault = fault_of(schedules_of(options, stages, training_schedule));
          INFO(text(schedule, shape) << " zero " << zero << (tied ? " tied" : "") << (recompute ? " recompute" : ""));
          REQUIRE(fault == "");
        }
      }
    }
  });
}

TEST_CASE("evaluation and inference schedules of all stages are sound, fit together and end without buffering") {
  for_shapes([](const PipelineSchedule& schedule, const PipelineShape& shape) {
    if (shape.micro_batches > 3) return;
    for (const Make make : {evaluation_schedule, inference_schedule}) {
      for (const int32_t zero : {0, 1, 2, 3}) {
        for (const bool tied : {false, true}) {
          INFO(text(schedule, shape) << " zero " << zero << (tied ? " tied" : ""));
          REQUIRE(fault_of(schedules_of({.flow = parameter_flow(zero), .tied_head = tied}, stages_of(schedule, shape),
                                        make)) == "");
        }
      }
    }
  });
}

// A chunk at either end may have only the embedding or the head.
TEST_CASE("stages without a block fit together, too") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    Stages stages = stages_of(schedule, {.stages = 3, .chunks_per_stage = schedule.least_chunks, .micro_batches = 5});
    const int32_t chunks = stages.shape.chunks();
    for (int32_t chunk = 1; chunk < chunks; ++chunk) stages.first_units[static_cast<size_t>(chunk)] = chunk;
    stages.first_units.back() = chunks;
    for (const bool tied : {false, true}) {
      for (const int32_t zero : {0, 2, 3}) {
        INFO(schedule.name << (tied ? " tied" : "") << " zero " << zero);
        CHECK(fault_of(schedules_of({.flow = parameter_flow(zero), .tied_head = tied}, stages, training_schedule)) ==
              "");
      }
    }
  }
}

TEST_CASE("receives in another order than the sends are found") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    const std::vector<Schedule> good = training(
        std::string(schedule.name), {.stages = 3, .chunks_per_stage = schedule.least_chunks, .micro_batches = 4});
    int found = 0;
    for (size_t stage = 0; stage < good.size(); ++stage) {
      for (const Way way : {Way::to_next, Way::to_previous}) {
        const std::vector<size_t> receives = indices_of(good[stage], [&](const Action& a) {
          const std::optional<Transfer> transfer = transfer_of(a.kind);
          if (!transfer || transfer->sends || !transfer->begins) return false;
          const Stages& stages = good[stage].options.stages;
          return route_of(stages, message_of(stages, a.kind, a.micro_batch, a.unit)).way == way;
        });
        for (size_t i = 0; i + 1 < receives.size(); ++i) {
          std::vector<Schedule> bad = good;
          std::swap(bad[stage].actions[receives[i]], bad[stage].actions[receives[i + 1]]);
          INFO(schedule.name << " stage " << stage << " receive " << i);
          CHECK(check_stages(bad) != "");
          ++found;
        }
      }
    }
    CHECK(found >= 6);
  }
}

TEST_CASE("a send or a receive that is left out, and one in another place, is found") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    const std::vector<Schedule> good =
        training(std::string(schedule.name),
                 {.stages = 3, .chunks_per_stage = schedule.least_chunks, .micro_batches = 4}, {.tied_head = true});
    for (size_t stage = 0; stage < good.size(); ++stage) {
      const std::vector<size_t> transfers = indices_of(good[stage], [](const Action& action) {
        const std::optional<Transfer> transfer = transfer_of(action.kind);
        return transfer && transfer->begins;
      });
      for (const size_t index : transfers) {
        INFO(schedule.name << " stage " << stage << " action " << index);
        std::vector<Schedule> bad = good;
        erase(bad[stage], index);
        CHECK(check_stages(bad) != "");
        // Moves it before the norm, where the data are not sent in time.
        bad = good;
        move(bad[stage], index, indices_of(good[stage], ActionKind::norm).front() - 1);
        CHECK(fault_of(bad) != "");
      }
    }
  }
}

TEST_CASE("two stages that each wait for the other's receive are found") {
  // Each stage waits for its send at once and begins to receive the other's data only after that.
  std::vector<Schedule> schedules = training("1f1b", {.stages = 2, .chunks_per_stage = 1, .micro_batches = 2});
  CHECK(check_stages(schedules) == "");
  for (Schedule& schedule : schedules) {
    for (size_t i = 0; i < schedule.actions.size(); ++i) {
      const std::optional<Transfer> transfer = transfer_of(schedule.actions[i].kind);
      if (!transfer || !transfer->sends || transfer->begins) continue;
      const auto begins = indices_of(schedule, [&](const Action& action) {
        const std::optional<Transfer> other = transfer_of(action.kind);
        return other && other->begins && other->sends && action.micro_batch == schedule.actions[i].micro_batch &&
               action.unit == schedule.actions[i].unit;
      });
      move(schedule, i, begins.front() + 1);
    }
  }
  // Stage 0 sends the second output while stage 1 sends the first gradient: both receives have begun before.
  CHECK(check_stages(schedules) == "");
  for (Schedule& schedule : schedules) {
    for (size_t i = schedule.actions.size(); i-- > 0;) {
      const ActionKind kind = schedule.actions[i].kind;
      if (kind != ActionKind::receive_input && kind != ActionKind::receive_d_output) continue;
      const Action receive = schedule.actions[i];
      const auto awaits = indices_of(schedule, [&](const Action& action) {
        const std::optional<Transfer> other = transfer_of(action.kind);
        return other && !other->begins && !other->sends && action.micro_batch == receive.micro_batch;
      });
      move(schedule, i, awaits.front() - 1);
    }
  }
  CHECK(check_stages(schedules) ==
        "stage 0, action 9 (await_output_sent of micro-batch 1, unit 1): waits for ever for stage 1 to receive");
}

TEST_CASE("what stages do together has to come on each of them") {
  std::vector<Schedule> bad =
      training("1f1b", {.stages = 3, .chunks_per_stage = 1, .micro_batches = 2}, {.tied_head = true});
  erase(bad[2], indices_of(bad[2], ActionKind::sum_tied).front());
  CHECK_THAT(check_stages(bad), Catch::Contains("sum_tied") && Catch::Contains("waits for ever for the other stages"));
  CHECK_THAT(check(bad[2]), Catch::Contains("before the tables' gradients are summed"));
  bad = training("gpipe", {.stages = 3, .chunks_per_stage = 1, .micro_batches = 2});
  erase(bad[1], indices_of(bad[1], ActionKind::norm).front());
  CHECK_THAT(check_stages(bad), Catch::Contains("stage 0, action ") && Catch::Contains("(norm of"));
}

TEST_CASE("schedules that are not those of one pipeline are refused") {
  std::vector<Schedule> schedules = training("1f1b", {.stages = 3, .chunks_per_stage = 1, .micro_batches = 2});
  CHECK(check_stages({}) == "no schedules");
  std::swap(schedules[1], schedules[2]);
  CHECK(check_stages(schedules) == "schedule 1 is of stage 2");
  schedules.pop_back();
  CHECK(check_stages(schedules) == "2 schedules for 3 stages");
  schedules = training("1f1b", {.stages = 3, .chunks_per_stage = 1, .micro_batches = 2});
  schedules[2] = training("1f1b", {.stages = 3, .chunks_per_stage = 1, .micro_batches = 3})[2];
  CHECK(check_stages(schedules) == "stage 2 has another pipeline than stage 0");
}
