// Schedules with gathers and sums of parameters: ZeRO 0 to 3.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "schedule/schedule.h"

using namespace gptrain;

namespace {

std::vector<ScheduleOptions> variants() {
  std::vector<ScheduleOptions> result;
  for (const int32_t zero : {0, 1, 2, 3}) {
    for (const int32_t micro_batches : {1, 2, 3}) {
      for (const size_t layers : {1, 2, 3, 4, 7}) {
        for (const bool tied : {false, true}) {
          for (const bool joint : {false, true}) {
            for (const bool recompute : {false, true}) {
              std::vector<bool> recomputed(layers + 2, false);
              for (size_t i = 1; recompute && i <= layers; i += 2) recomputed[i] = true;
              for (const bool narrowed : {false, true})
                result.push_back({micro_batches, recomputed, zero, narrowed, tied, joint});
            }
          }
        }
      }
    }
  }
  return result;
}

std::string describe(const ScheduleOptions& o) {
  return "zero " + std::to_string(o.zero) + ", " + std::to_string(o.micro_batches) + " micro-batches, " +
         std::to_string(o.recomputed.size()) + " units" + (o.tied_head ? ", tied" : "") +
         (o.narrowed_sums ? ", narrowed" : "") + (o.joint_backward ? ", joint" : "");
}

Schedule schedule_of(int32_t zero, bool tied = false) {
  return one_stage_schedule({2, std::vector<bool>(6, false), zero, false, tied, false});
}

// The place of the n-th action of a kind and unit.
size_t find(const Schedule& schedule, ActionKind kind, int32_t unit, int nth = 0) {
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    if (action.kind == kind && action.unit == unit && nth-- == 0) return i;
  }
  FAIL("no such action");
  return 0;
}

void erase(Schedule& schedule, size_t place) {
  schedule.actions.erase(schedule.actions.begin() + static_cast<std::ptrdiff_t>(place));
}

void move(Schedule& schedule, size_t from, size_t to) {
  const Action action = schedule.actions[from];
  erase(schedule, from);
  schedule.actions.insert(schedule.actions.begin() + static_cast<std::ptrdiff_t>(to), action);
}

bool uses_weights(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::recompute || kind == ActionKind::loss ||
         kind == ActionKind::evaluate || kind == ActionKind::backward_input || kind == ActionKind::backward;
}

bool writes_gradients(ActionKind kind) {
  return kind == ActionKind::loss || kind == ActionKind::backward_input || kind == ActionKind::backward_weight ||
         kind == ActionKind::backward;
}

// Units whose parameters an action touches.
std::vector<int32_t> units_of(const Schedule& schedule, const Action& action) {
  std::vector<int32_t> units = {action.unit};
  const bool head_matrix = action.kind == ActionKind::loss || action.kind == ActionKind::evaluate;
  if (head_matrix && schedule.tied_head) units.push_back(0);
  return units;
}

// Plays ZeRO 3's slots for weights by the plainest of rules: what was gathered last is what is there.
std::string misused_slot(const Schedule& schedule) {
  std::array<int32_t, num_parameter_slots> gathered{}, arrived{};
  gathered.fill(-1);
  arrived.fill(-1);
  const auto slot = [&](int32_t unit) { return static_cast<size_t>(parameter_slot(unit, schedule.num_units)); };
  for (const Action& action : schedule.actions) {
    if (action.kind == ActionKind::gather) {
      gathered[slot(action.unit)] = action.unit;
      arrived[slot(action.unit)] = -1;
    } else if (action.kind == ActionKind::await_weights) {
      if (gathered[slot(action.unit)] != action.unit) return "awaits what nobody gathers";
      arrived[slot(action.unit)] = action.unit;
    } else if (uses_weights(action.kind)) {
      for (const int32_t unit : units_of(schedule, action)) {
        if (arrived[slot(unit)] != unit) return "uses weights that are not there";
      }
    }
  }
  return {};
}

// Plays the slots that sums use: none is used twice, or with ZeRO 2 and 3 written, between the start of a sum and its
// end.
std::string misused_bucket(const Schedule& schedule) {
  std::set<size_t> summing;
  std::set<std::pair<int32_t, int32_t>> sums_done;
  const auto slot = [&](int32_t unit) { return static_cast<size_t>(parameter_slot(unit, schedule.num_units)); };
  for (const Action& action : schedule.actions) {
    if (action.kind == ActionKind::reduce && !summing.insert(slot(action.unit)).second) return "two sums in one slot";
    if (action.kind == ActionKind::await_gradients) {
      summing.erase(slot(action.unit));
      sums_done.insert({action.micro_batch, action.unit});
    }
    if (schedule.zero < 2 || !writes_gradients(action.kind)) continue;
    for (const int32_t unit : units_of(schedule, action)) {
      if (summing.contains(slot(unit))) return "writes gradients that are being summed";
    }
  }
  const auto expected = static_cast<size_t>((schedule.zero < 2 ? 1 : schedule.micro_batches) * schedule.num_units);
  return sums_done.size() == expected ? "" : "a sum is missing";
}

}  // namespace

TEST_CASE("schedules of every ZeRO stage are sound") {
  for (const ScheduleOptions& options : variants()) {
    INFO(describe(options));
    const Schedule schedule = one_stage_schedule(options);
    CHECK(check(schedule) == "");
    if (options.zero == 3) CHECK(misused_slot(schedule) == "");
    if (options.zero >= 2 || options.narrowed_sums) CHECK(misused_bucket(schedule) == "");
    ScheduleOptions evaluation = options;
    evaluation.micro_batches = 1;
    CHECK(check(evaluation_schedule(evaluation)) == "");
    if (options.zero == 3) CHECK(misused_slot(evaluation_schedule(evaluation)) == "");
  }
}

TEST_CASE("units are summed once a step, or with ZeRO 2 and 3 once a micro-batch, right after their backward") {
  for (const ScheduleOptions& options : variants()) {
    INFO(describe(options));
    const Schedule schedule = one_stage_schedule(options);
    const int32_t sums = options.zero >= 2 ? options.micro_batches : 1;
    for (int32_t unit = 0; unit < schedule.num_units; ++unit) {
      int32_t found = 0;
      for (size_t i = 0; i < schedule.actions.size(); ++i) {
        if (schedule.actions[i].kind != ActionKind::reduce || schedule.actions[i].unit != unit) continue;
        ++found;
        // A narrowed sum may have to wait for the one before it in its slot.
        const size_t last = schedule.actions[i - 1].kind == ActionKind::await_gradients ? i - 2 : i - 1;
        const Action& before = schedule.actions[last];
        CHECK(before.unit == unit);
        CHECK(before.micro_batch == schedule.actions[i].micro_batch);
        const bool ends_backward = before.kind == ActionKind::backward || before.kind == ActionKind::backward_weight;
        CHECK(ends_backward);
      }
      CHECK(found == sums);
    }
  }
}

TEST_CASE("with ZeRO 3 the next unit's weights are on their way before a unit is used") {
  const Schedule schedule = schedule_of(3);
  for (int32_t unit = 0; unit + 1 < schedule.num_units; ++unit) {
    CHECK(find(schedule, ActionKind::gather, unit + 1) < find(schedule, ActionKind::forward, unit));
  }
  // Backwards too: the block before.
  for (int32_t unit = 3; unit > 1; --unit)
    CHECK(find(schedule, ActionKind::gather, unit - 1, unit > 2 ? 0 : 1) <
          find(schedule, ActionKind::backward_input, unit));
}

TEST_CASE("with ZeRO 1 and 2 updated weights are gathered at once and awaited in the next step") {
  for (const int32_t zero : {1, 2}) {
    const Schedule schedule = schedule_of(zero);
    for (int32_t unit = 0; unit < schedule.num_units; ++unit) {
      CHECK(find(schedule, ActionKind::gather, unit) == find(schedule, ActionKind::update, unit) + 1);
      CHECK(find(schedule, ActionKind::await_weights, unit) + 1 == find(schedule, ActionKind::forward, unit));
    }
  }
  for (const Action& action : schedule_of(0).actions) {
    CHECK(action.kind != ActionKind::gather);
    CHECK(action.kind != ActionKind::await_weights);
  }
}

TEST_CASE("the checker finds every kind of unsound sharded schedule") {
  const auto fault_after = [](Schedule schedule, auto&& change) {
    REQUIRE(check(schedule) == "");
    change(schedule);
    return check(schedule);
  };
  SECTION("weights that are never gathered") {
    const std::string fault =
        fault_after(schedule_of(3), [](Schedule& s) { erase(s, find(s, ActionKind::gather, 2)); });
    CHECK(fault.find("before the gathering begins") != std::string::npos);
  }
  SECTION("weights that are not awaited") {
    for (const int32_t zero : {1, 2, 3}) {
      const std::string fault =
          fault_after(schedule_of(zero), [](Schedule& s) { erase(s, find(s, ActionKind::await_weights, 2)); });
      CHECK(fault.find(zero == 3 ? "the weights of unit 2 are not there"
                                 : "the updated weights of unit 2 are not awaited") != std::string::npos);
    }
  }
  SECTION("weights awaited after their use") {
    const std::string fault = fault_after(schedule_of(3), [](Schedule& s) {
      move(s, find(s, ActionKind::await_weights, 3), find(s, ActionKind::forward, 3));
    });
    CHECK(fault.find("the weights of unit 3 are not there") != std::string::npos);
  }
  SECTION("the head's matrix of a tied head is not there") {
    // Nothing of the embedding's own use shows that the loss still needs its weights.
    const std::string fault = fault_after(schedule_of(3, true), [](Schedule& s) {
      Action gather{.kind = ActionKind::gather, .unit = 0};
      s.actions.insert(s.actions.begin() + static_cast<std::ptrdiff_t>(find(s, ActionKind::loss, 5)), gather);
    });
    CHECK(fault.find("the weights of unit 0 are not there") != std::string::npos);
  }
  SECTION("a slot gathered anew while its unit is still needed") {
    const std::string fault = fault_after(
        schedule_of(3), [](Schedule& s) { move(s, find(s, ActionKind::gather, 3), find(s, ActionKind::forward, 1)); });
    CHECK(fault.find("the weights of unit 1 are not there") != std::string::npos);
  }
  SECTION("gradients written where a sum still reads") {
    for (const int32_t zero : {2, 3}) {
      const std::string fault = fault_after(schedule_of(zero), [](Schedule& s) {
        move(s, find(s, ActionKind::await_gradients, 4), find(s, ActionKind::backward_weight, 2));
      });
      CHECK(fault.find("the gradients of micro-batch 0, unit 4 are still being summed there") != std::string::npos);
    }
  }
  SECTION("a narrowed sum in a slot that still holds another") {
    const std::string fault = fault_after(
        one_stage_schedule({2, std::vector<bool>(6, false), 0, true, false, false}),
        [](Schedule& s) { move(s, find(s, ActionKind::await_gradients, 4), find(s, ActionKind::norm, -1)); });
    CHECK(fault.find("the slot still holds the sum of micro-batch 1, unit 4") != std::string::npos);
  }
  SECTION("a tied head's loss while the embedding's gradients are being summed") {
    const std::string fault = fault_after(schedule_of(2, true), [](Schedule& s) {
      move(s, find(s, ActionKind::await_gradients, 0), find(s, ActionKind::loss, 5, 1));
    });
    CHECK(fault.find("the gradients of micro-batch 0, unit 0 are still being summed there") != std::string::npos);
  }
  SECTION("a sum that is awaited before it begins") {
    const std::string fault = fault_after(schedule_of(0), [](Schedule& s) {
      move(s, find(s, ActionKind::await_gradients, 1), find(s, ActionKind::reduce, 1));
    });
    CHECK(fault.find("before the sum begins") != std::string::npos);
  }
  SECTION("the norm before the sums") {
    for (const int32_t zero : {0, 1, 2, 3}) {
      const std::string fault = fault_after(schedule_of(zero), [](Schedule& s) {
        erase(s, find(s, ActionKind::await_gradients, 0, s.zero >= 2 ? 1 : 0));
      });
      CHECK(fault.find("before all units are reduced") != std::string::npos);
    }
  }
  SECTION("a micro-batch that is never summed") {
    const std::string fault = fault_after(schedule_of(2), [](Schedule& s) {
      erase(s, find(s, ActionKind::reduce, 0));
      erase(s, find(s, ActionKind::await_gradients, 0));
    });
    CHECK(fault.find("before all units are reduced") != std::string::npos);
  }
  SECTION("a unit summed before its last micro-batch") {
    const std::string fault = fault_after(schedule_of(1), [](Schedule& s) {
      move(s, find(s, ActionKind::reduce, 4), find(s, ActionKind::backward_weight, 4, 1));
    });
    CHECK(fault.find("before the gradients of micro-batch 1") != std::string::npos);
  }
  SECTION("weights gathered before their update") {
    const std::string fault = fault_after(
        schedule_of(1), [](Schedule& s) { move(s, find(s, ActionKind::gather, 3), find(s, ActionKind::update, 3)); });
    CHECK(fault.find("before the update") != std::string::npos);
  }
  SECTION("an update before the norm") {
    const std::string fault = fault_after(
        schedule_of(3), [](Schedule& s) { move(s, find(s, ActionKind::update, 0), find(s, ActionKind::norm, -1)); });
    CHECK(fault.find("before the norm") != std::string::npos);
  }
}
