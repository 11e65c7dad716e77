// Copies of offloaded units' saved tensors: their position in a step, and the memory they free.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "catch.h"
#include "schedule/allocator.h"
#include "schedule/offload.h"
#include "schedule/schedule.h"
#include "schedule_fixture.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

ScheduleOptions options_of(int64_t count, const std::vector<bool>& recomputed, int32_t micro_batches = 1) {
  ScheduleOptions options{.micro_batches = micro_batches, .units = units_of(recomputed)};
  options.stages = Stages::one(static_cast<int32_t>(recomputed.size()), micro_batches);
  const EvenOffload even = spread_evenly(options.stages, count);
  for (const int32_t unit : even.units) options.units[static_cast<size_t>(unit)].offload = even.offload;
  return options;
}

// Every record has 10 bytes, every stream 1.
std::vector<Lifetime> on_device(const Schedule& schedule) {
  std::vector<Lifetime> lifetimes;
  for (const Buffer& buffer : schedule.buffers) {
    const bool is_record = buffer.kind == BufferKind::saved_for_input;
    const bool is_stream = buffer.kind == BufferKind::stream || buffer.kind == BufferKind::stream_gradient;
    lifetimes.push_back({buffer.first, buffer.last, is_record ? 10 : is_stream ? 1 : 0});
  }
  return lifetimes;
}

int64_t peak(int64_t count, size_t layers) {
  return most_alive_bytes(on_device(training_schedule(options_of(count, std::vector<bool>(layers + 2, false)))));
}

}  // namespace

TEST_CASE("before one pass, copies that began earlier are awaited before others begin") {
  int64_t at_once = 0;
  for (const int32_t passes : {1, 2, 3}) {
    ScheduleOptions options = options_of(8, std::vector<bool>(10, false), 3);
    for (UnitTraits& unit : options.units) {
      unit.offload.leaves_for = passes;
      unit.offload.comes_ahead = passes;
    }
    std::set<std::tuple<ActionKind, int32_t, int32_t>> begun;  // since the last pass
    for (const Action& action : training_schedule(options).actions) {
      if (!copies_record(action.kind)) {
        begun.clear();
        continue;
      }
      const bool begins = action.kind == ActionKind::offload || action.kind == ActionKind::fetch;
      const ActionKind of = action.kind == ActionKind::await_offloaded ? ActionKind::offload
                            : action.kind == ActionKind::await_fetched ? ActionKind::fetch
                                                                       : action.kind;
      const std::tuple copy(of, action.unit, action.micro_batch);
      if (begins) begun.insert(copy);
      // A copy that was not begun here began earlier.
      if (!begins && !begun.contains(copy)) CHECK(begun.empty());
      at_once += !begins ? 1 : 0;
    }
  }
  CHECK(at_once > 0);
}

TEST_CASE("schedules with offloaded units are sound, however many there are") {
  for (const bool recompute : {false, true}) {
    for (const int32_t zero : {0, 2, 3}) {
      for (const size_t layers : {1, 2, 5, 8}) {
        for (int64_t count = 1; count <= static_cast<int64_t>(layers); ++count) {
          for (const int32_t micro_batches : {1, 3}) {
            std::vector<bool> recomputed(layers + 2, false);
            for (size_t unit = 1; recompute && unit <= layers; unit += 2) recomputed[unit] = true;
            ScheduleOptions options = options_of(count, recomputed, micro_batches);
            options.flow = parameter_flow(zero);
            const Schedule schedule = training_schedule(options);
            INFO(layers << " layers, " << count << " offloaded, ZeRO " << zero);
            REQUIRE(check(schedule) == "");
            const auto copies = std::count_if(schedule.actions.begin(), schedule.actions.end(),
                                              [](const Action& action) { return action.kind == ActionKind::fetch; });
            CHECK(copies == count * micro_batches);
          }
        }
      }
    }
  }
}

TEST_CASE("pipelines with offloaded units are sound on every stage") {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    const int32_t chunks = schedule.name == "interleaved" || schedule.name == "zero-bubble-v" ? 2 : 1;
    for (int32_t stage = 0; stage < 2; ++stage) {
      ScheduleOptions options{.micro_batches = 4, .units = plain_units(10)};
      options.stages.schedule = &schedule;
      options.stages.shape = {.stages = 2, .chunks_per_stage = chunks, .micro_batches = 4};
      options.stages.stage = stage;
      options.stages.first_units = chunks == 1 ? std::vector<int32_t>{0, 5, 10} : std::vector<int32_t>{0, 3, 5, 7, 10};
      const EvenOffload even = spread_evenly(options.stages, 3);
      REQUIRE(even.units.size() == 3);
      for (const int32_t unit : even.units) {
        CHECK(options.stages.runs(unit));
        options.units[static_cast<size_t>(unit)].offload = even.offload;
      }
      INFO(schedule.name << " stage " << stage);
      CHECK(check(training_schedule(options)) == "");
    }
  }
}

TEST_CASE("what is offloaded is spread over a stage's blocks") {
  const auto units = [](int64_t count) { return spread_evenly(Stages::one(10, 1), count).units; };
  CHECK(units(0).empty());
  CHECK(units(1) == std::vector<int32_t>{1});
  CHECK(units(3) == std::vector<int32_t>{1, 3, 5});
  CHECK(units(7) == std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(units(99) == std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("each offloaded unit takes its record from the device's peak, until two of either way are left") {
  const int64_t none = peak(0, 12);
  CHECK(peak(1, 12) < none - 8);
  CHECK(peak(4, 12) < none - 38);
  CHECK(peak(12, 12) < 40);
  CHECK(peak(12, 24) < peak(0, 24) - 110);
  // Does not grow with the model.
  CHECK(peak(40, 40) == peak(12, 12));
}

TEST_CASE("the checker finds what is wrong with copies") {
  const auto broken = [](const auto& change) {
    Schedule schedule = training_schedule(options_of(4, std::vector<bool>(6, false)));
    change(schedule);
    return check(schedule);
  };
  const auto move_before = [](ActionKind kind, ActionKind other, int32_t unit) {
    return [=](Schedule& schedule) { move(schedule, find(schedule, kind, unit), find(schedule, other, unit)); };
  };
  const auto without = [](ActionKind kind, int32_t unit) {
    return [=](Schedule& schedule) { erase(schedule, find(schedule, kind, unit)); };
  };
  using enum ActionKind;
  CHECK(broken([](Schedule&) {}) == "");
  CHECK(broken(move_before(offload, forward, 2)).find("what it copies is not there") != std::string::npos);
  CHECK(broken(move_before(await_offloaded, offload, 2)).find("not begun") != std::string::npos);
  CHECK(broken(move_before(fetch, await_offloaded, 2)).find("what it copies is not there") != std::string::npos);
  CHECK(broken(move_before(backward_input, await_fetched, 2)).find("is not awaited") != std::string::npos);
  CHECK(broken(without(await_fetched, 2)).find("is not awaited") != std::string::npos);
  CHECK(broken(without(fetch, 2)).find("has not begun") != std::string::npos);
  CHECK(broken(without(offload, 2)).find("not begun") != std::string::npos);
  // Uses a record at its old place while it is elsewhere.
  CHECK(broken([](Schedule& schedule) {
          Action& backward = schedule.actions[find(schedule, backward_input, 2)];
          backward[Operand::saved_for_input] = schedule.actions[find(schedule, offload, 2)][Operand::saved_for_input];
        }).find("lives from") != std::string::npos);
}
