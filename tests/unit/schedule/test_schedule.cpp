#include <algorithm>
#include <fmt/format.h>
#include <string>

#include "catch.h"
#include "schedule/schedule.h"
#include "schedule_fixture.h"

using namespace gptrain;
using namespace gptrain::testing;

namespace {

Schedule with_recompute() {
  return training_schedule({.micro_batches = 3, .units = units_of({false, true, false, true, false})});
}

// Returns the most buffers of a kind that are alive in one action.
int most_alive(const Schedule& schedule, BufferKind kind) {
  int most = 0;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const auto alive = [&](const Buffer& b) {
      return b.kind == kind && b.first <= static_cast<int32_t>(i) && static_cast<int32_t>(i) <= b.last;
    };
    most = std::max(most, static_cast<int>(std::count_if(schedule.buffers.begin(), schedule.buffers.end(), alive)));
  }
  return most;
}

}  // namespace

TEST_CASE("generated schedules are sound and keep no more than they need") {
  for (const int32_t micro_batches : {1, 2, 5}) {
    const Schedule plain = training_schedule({.micro_batches = micro_batches, .units = plain_units(6)});
    CHECK(check(plain).empty());
    CHECK(most_alive(plain, BufferKind::batch) == 1);
    CHECK(most_alive(plain, BufferKind::stream) == 5);
    CHECK(most_alive(plain, BufferKind::saved_for_weight) == 4);
    CHECK(most_alive(plain, BufferKind::gradients) == 1);
    CHECK(most_alive(plain, BufferKind::stream_gradient) == 2);
    CHECK(most_alive(plain, BufferKind::weights) == 0);
  }
  const Schedule recomputed = with_recompute();
  CHECK(check(recomputed).empty());
  // The buffers of unit 2 and of a unit whose forward runs again.
  CHECK(most_alive(recomputed, BufferKind::saved_for_weight) == 2);
  const Schedule evaluation = evaluation_schedule({.units = units_of({false, true, false})});
  CHECK(check(evaluation).empty());
  CHECK(most_alive(evaluation, BufferKind::stream) == 2);
  CHECK(most_alive(evaluation, BufferKind::saved_for_weight) == 1);
  CHECK(check(inference_schedule({.units = plain_units(4)})).empty());
}

TEST_CASE("what a unit keeps for the gradient of its input is gone before its weights' gradients") {
  const Schedule schedule = with_recompute();
  for (const Buffer& buffer : schedule.buffers) {
    if (buffer.kind != BufferKind::saved_for_input) continue;
    const ActionKind last = schedule.actions[static_cast<size_t>(buffer.last)].kind;
    const bool dropped = schedule.traits(buffer.unit).recomputed && last == ActionKind::forward;
    CHECK((dropped || last == ActionKind::backward_input));
  }
}

TEST_CASE("the gradient of a unit's output lives as long as the unit says") {
  for (const bool weight_reads : {false, true}) {
    std::vector<UnitTraits> units = plain_units(5);
    for (UnitTraits& unit : units) {
      OperandSet& reads = unit.uses[static_cast<size_t>(UnitPass::backward_weight)].reads;
      if (unit.kind == UnitKind::block && !weight_reads) reads = {Operand::saved_for_weight, Operand::gradients};
    }
    const Schedule schedule = training_schedule({.units = units});
    CHECK(check(schedule) == "");
    for (const Buffer& buffer : schedule.buffers) {
      if (buffer.kind != BufferKind::stream_gradient || buffer.unit == 0) continue;
      CHECK(schedule.actions[static_cast<size_t>(buffer.last)].kind ==
            (weight_reads ? ActionKind::backward_weight : ActionKind::backward_input));
    }
  }
}

TEST_CASE("weights are quantized to FP8 once a step, with ZeRO 3 for each action") {
  for (const int32_t zero : {0, 3}) {
    std::vector<UnitTraits> units = plain_units(5);
    for (UnitTraits& unit : units) unit.prepares_weights = unit.kind == UnitKind::block;
    const Schedule schedule = training_schedule({.micro_batches = 2, .units = units, .flow = parameter_flow(zero)});
    CHECK(check(schedule) == "");
    const auto copies = std::count_if(schedule.buffers.begin(), schedule.buffers.end(),
                                      [](const Buffer& b) { return b.kind == BufferKind::prepared_weights; });
    CHECK(copies == (zero == 0 ? 3 : 3 * 2 * 2));  // blocks, micro-batches, forward and backward_input
  }
}

TEST_CASE("units run again from the input of one before them, as often as is asked, and leave new buffers") {
  std::vector<UnitTraits> units = units_of({false, true, true, true, true, false, false});
  units[4].recompute_from = 2;
  units[3].recompute_from = 0;
  for (const int32_t zero : {0, 3}) {
    const Schedule schedule = training_schedule({.micro_batches = 2, .units = units, .flow = parameter_flow(zero)});
    CHECK(check(schedule) == "");
    std::string text;
    for (const Action& action : schedule.actions)
      if (action.micro_batch == 1 && (is_recomputation(action.kind) || action.kind == ActionKind::backward_input))
        text += fmt::format("{}{} ",
                            action.kind == ActionKind::recompute_output ? "f"
                            : is_recomputation(action.kind)             ? "r"
                                                                        : "B",
                            action.unit);
    CHECK(text == "B6 B5 f2 f3 r4 B4 f0 f1 f2 r3 B3 r2 B2 r1 B1 ");
    // Before unit 5 only the input streams of unit 2's pass and of unit 5 stay.
    const size_t last = find(schedule, ActionKind::forward, 5);
    const auto alive = std::count_if(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& buffer) {
      return buffer.kind == BufferKind::stream && buffer.first < static_cast<int32_t>(last) &&
             buffer.last > static_cast<int32_t>(last);
    });
    CHECK(alive == 2);
  }
}

TEST_CASE("a unit is reduced right after its last micro-batch") {
  const Schedule schedule = with_recompute();
  for (int32_t unit = 1; unit < 4; ++unit) {
    const size_t reduce = find(schedule, ActionKind::reduce, unit);
    CHECK(schedule.actions[reduce - 1].kind == ActionKind::backward_weight);
    CHECK(schedule.actions[reduce - 1].unit == unit);
    CHECK(schedule.actions[reduce - 1].micro_batch == 2);
  }
}

TEST_CASE("the checker finds every kind of unsound schedule") {
  SECTION("weight gradient before the input gradient") {
    Schedule schedule = with_recompute();
    const size_t i = find(schedule, ActionKind::backward_input, 2);
    std::swap(schedule.actions[i], schedule.actions[i + 1]);
    CHECK(check(schedule).find("before its input gradient") != std::string::npos);
  }
  SECTION("a recomputation that is left out") {
    Schedule schedule = with_recompute();
    erase(schedule, find(schedule, ActionKind::recompute, 3));
    CHECK(check(schedule).find("its saved_for_input is not there") != std::string::npos);
  }
  SECTION("a way to a unit that is left out") {
    std::vector<UnitTraits> units = units_of({false, false, true, true, false});
    units[3].recompute_from = 2;
    Schedule schedule = training_schedule({.micro_batches = 3, .units = units});
    REQUIRE(check(schedule) == "");
    erase(schedule, find(schedule, ActionKind::recompute_output, 2));
    CHECK(check(schedule).find("its input is not there") != std::string::npos);
  }
  SECTION("what a dropped forward has saved is read") {
    Schedule schedule = with_recompute();
    const Action& forward = schedule.actions[find(schedule, ActionKind::forward, 3)];
    const Action& recompute = schedule.actions[find(schedule, ActionKind::recompute, 3)];
    const int32_t kept = recompute[Operand::saved_for_weight];
    Action& backward = schedule.actions[find(schedule, ActionKind::backward_weight, 3)];
    REQUIRE(backward[Operand::saved_for_weight] == kept);
    backward[Operand::saved_for_weight] = forward[Operand::saved_for_weight];
    CHECK(check(schedule).find("lives from action") != std::string::npos);
  }
  SECTION("two gradients in one buffer") {
    Schedule schedule = with_recompute();
    Action& action = schedule.actions[find(schedule, ActionKind::backward_input, 3)];
    action[Operand::d_input] = action[Operand::d_output];
    CHECK(check(schedule).find("its d_input is stream_gradient of micro-batch 0, unit 3") != std::string::npos);
  }
  SECTION("a buffer that there is not") {
    Schedule schedule = with_recompute();
    schedule.actions[find(schedule, ActionKind::forward, 2)][Operand::output] = 1000;
    CHECK(check(schedule).find("its output is buffer 1000 of") != std::string::npos);
  }
  SECTION("a buffer that the action has no use for") {
    Schedule schedule = with_recompute();
    schedule.actions[find(schedule, ActionKind::forward, 2)][Operand::d_input] = 0;
    CHECK(check(schedule).find("has no d_input") != std::string::npos);
  }
  SECTION("a buffer that ends too early") {
    Schedule schedule = with_recompute();
    --schedule.buffers[3].last;
    CHECK(check(schedule).find("lives from action") != std::string::npos);
  }
  SECTION("a unit reduced before its last micro-batch") {
    Schedule schedule = with_recompute();
    move(schedule, find(schedule, ActionKind::reduce, 2), 20);
    CHECK(check(schedule).find("before the gradients of micro-batch") != std::string::npos);
  }
  SECTION("the norm before the last sum") {
    Schedule schedule = with_recompute();
    const size_t norm = find(schedule, ActionKind::norm, -1);
    std::swap(schedule.actions[norm], schedule.actions[norm - 1]);
    CHECK(check(schedule).find("before all units are summed") != std::string::npos);
  }
  SECTION("a unit that is never updated") {
    Schedule schedule = with_recompute();
    schedule.actions.pop_back();
    CHECK(check(schedule).find("unit 4 is never updated") != std::string::npos);
  }
  SECTION("gradients of micro-batches out of order") {
    Schedule schedule = with_recompute();
    move(schedule, find(schedule, ActionKind::backward_weight, 2), find(schedule, ActionKind::backward_weight, 2, 1));
    CHECK(check(schedule).find("after that of micro-batch -1") != std::string::npos);
  }
  SECTION("a unit that a micro-batch passes by") {
    Schedule schedule = with_recompute();
    erase(schedule, find(schedule, ActionKind::forward, 2));
    CHECK(check(schedule).find("its input is not there") != std::string::npos);
  }
  SECTION("an action that is done twice") {
    Schedule schedule = with_recompute();
    const size_t i = find(schedule, ActionKind::backward_weight, 2);
    schedule.actions.insert(schedule.actions.begin() + static_cast<std::ptrdiff_t>(i), Action(schedule.actions[i]));
    CHECK(check(schedule).find("done twice") != std::string::npos);
  }
}
