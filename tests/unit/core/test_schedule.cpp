#include <algorithm>

#include "catch.h"
#include "schedule/schedule.h"

using namespace gptrain;

namespace {

Schedule with_recompute() {
  return one_stage_schedule({.micro_batches = 3, .recomputed = {false, true, false, true, false}});
}

size_t find(const Schedule& schedule, ActionKind kind, int32_t unit) {
  const auto place = std::find_if(schedule.actions.begin(), schedule.actions.end(),
                                  [&](const Action& a) { return a.kind == kind && a.unit == unit; });
  return static_cast<size_t>(place - schedule.actions.begin());
}

}  // namespace

TEST_CASE("generated schedules are sound and hold no more than they need") {
  for (const int32_t micro_batches : {1, 2, 5}) {
    const Schedule plain =
        one_stage_schedule({.micro_batches = micro_batches, .recomputed = std::vector<bool>(6, false)});
    CHECK(check(plain).empty());
    CHECK(plain.activation_slots == 1);
    CHECK(plain.replay_slots == 0);
    CHECK(plain.gradient_slots == 1);
    CHECK(plain.carrier_slots == 2);
  }
  const Schedule recomputed = with_recompute();
  CHECK(check(recomputed).empty());
  CHECK(recomputed.replay_slots == 1);
  CHECK(check(evaluation_schedule({.recomputed = {false, true, false}})).empty());
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
    schedule.actions.erase(schedule.actions.begin() +
                           static_cast<std::ptrdiff_t>(find(schedule, ActionKind::recompute, 3)));
    CHECK(check(schedule).find("replay slot") != std::string::npos);
  }
  SECTION("two gradients in one carrier") {
    Schedule schedule = with_recompute();
    Action& action = schedule.actions[find(schedule, ActionKind::backward_input, 3)];
    action.d_input = action.d_output;
    CHECK(check(schedule).find("still holds") != std::string::npos);
  }
  SECTION("a slot outside its pool") {
    Schedule schedule = with_recompute();
    schedule.gradient_slots = 0;
    CHECK(check(schedule).find("gradient slot 0 of 0") != std::string::npos);
  }
  SECTION("a unit reduced before its last micro-batch") {
    Schedule schedule = with_recompute();
    const size_t from = find(schedule, ActionKind::reduce, 2);
    const Action action = schedule.actions[from];
    schedule.actions.erase(schedule.actions.begin() + static_cast<std::ptrdiff_t>(from));
    schedule.actions.insert(schedule.actions.begin() + 20, action);
    CHECK(check(schedule).find("before the gradients of micro-batch") != std::string::npos);
  }
  SECTION("the norm before the last reduction") {
    Schedule schedule = with_recompute();
    const size_t norm = find(schedule, ActionKind::norm, -1);
    std::swap(schedule.actions[norm], schedule.actions[norm - 1]);
    CHECK(check(schedule).find("before all units are reduced") != std::string::npos);
  }
  SECTION("a unit that is never updated") {
    Schedule schedule = with_recompute();
    schedule.actions.pop_back();
    CHECK(check(schedule).find("unit 4 is never updated") != std::string::npos);
  }
  SECTION("a second micro-batch in a slot that is still held") {
    Schedule schedule = with_recompute();
    const auto second = std::find_if(schedule.actions.begin(), schedule.actions.end(),
                                     [](const Action& a) { return a.micro_batch == 1; });
    const Action action = *second;
    schedule.actions.erase(second);
    schedule.actions.insert(schedule.actions.begin() + 3, action);
    CHECK(check(schedule).find("still holds micro-batch 0") != std::string::npos);
  }
}
