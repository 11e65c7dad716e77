// Schedules with gathers and sums of parameters: ZeRO 0 to 3.
#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "schedule/schedule.h"
#include "schedule_fixture.h"

using namespace gptrain;
using namespace gptrain::testing;

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
              for (const bool narrow : {false, true}) {
                result.push_back({.micro_batches = micro_batches,
                                  .units = units_of(recomputed),
                                  .flow = parameter_flow(zero),
                                  .narrow_sums = narrow,
                                  .tied_head = tied,
                                  .joint_backward = joint});
                if (zero < 3 && !joint && !recompute) {
                  ScheduleOptions delayed = result.back();
                  delayed.flow = parameter_flow(zero, Residency::resident, true);
                  delayed.flow.updates_delayed = true;
                  result.insert(result.end() - 1, delayed);
                }
                if (joint || recompute) continue;
                result.push_back(result.back());
                result.back().keeps_narrow = true;
                result.back().sums_alone = zero == 0 && !narrow;
              }
            }
          }
        }
      }
    }
  }
  return result;
}

std::string describe(const ScheduleOptions& o) {
  return "weights " + std::to_string(static_cast<int>(o.flow.weights)) + (o.flow.weights_return ? " return" : "") +
         (o.flow.updates_delayed ? ", late" : "") + (o.flow.sums_each_pass ? ", sums each pass, " : ", ") +
         std::to_string(o.micro_batches) + " micro-batches, " + std::to_string(o.units.size()) + " units" +
         (o.tied_head ? ", tied" : "") + (o.narrow_sums ? ", narrow" : "") + (o.keeps_narrow ? ", kept narrow" : "") +
         (o.joint_backward ? ", joint" : "");
}

Schedule schedule_of(int32_t zero, bool tied = false) {
  return training_schedule(
      {.micro_batches = 2, .units = plain_units(6), .flow = parameter_flow(zero), .tied_head = tied});
}

bool uses_weights(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::recompute || kind == ActionKind::loss ||
         kind == ActionKind::evaluate || kind == ActionKind::backward_input || kind == ActionKind::backward;
}

bool writes_gradients(ActionKind kind) {
  return kind == ActionKind::loss || kind == ActionKind::backward_weight || kind == ActionKind::backward;
}

// Returns the units whose parameters an action touches.
std::vector<int32_t> units_of_action(const Schedule& schedule, const Action& action) {
  const bool head_matrix = action.kind == ActionKind::loss || action.kind == ActionKind::evaluate;
  return {head_matrix && schedule.options.tied_head ? 0 : action.unit};
}

// Simulates ZeRO 3's weights by simple rules: gathered and awaited weights exist until their buffer ends, and only the
// block in use and those that are gathered ahead have theirs. Returns the first violation.
std::string misused_weights(const Schedule& schedule) {
  std::set<int32_t> arrived;
  for (size_t i = 0; i < schedule.actions.size(); ++i) {
    const Action& action = schedule.actions[i];
    const auto alive = std::count_if(schedule.buffers.begin(), schedule.buffers.end(), [&](const Buffer& b) {
      return b.kind == BufferKind::weights && schedule.traits(b.unit).kind == UnitKind::block &&
             b.first <= static_cast<int32_t>(i) && static_cast<int32_t>(i) <= b.last;
    });
    if (alive > 1 + schedule.options.gathers_ahead) return "too many blocks have their weights";
    const int32_t buffer = action[Operand::weights];
    if (action.kind == ActionKind::await_weights) arrived.insert(buffer);
    if (!uses_weights(action.kind)) continue;
    if (!arrived.contains(buffer)) return "uses weights that are not there";
    if (schedule.buffers[static_cast<size_t>(buffer)].unit != units_of_action(schedule, action).front())
      return "uses another unit's weights";
  }
  return {};
}

// Simulates the sums: gradients being summed are not written, and at most two blocks' are in flight. Returns the first
// violation.
std::string misused_sums(const Schedule& schedule) {
  std::set<int32_t> summing;  // whole gradients
  std::set<std::pair<int32_t, int32_t>> sums_done;
  int blocks = 0;
  for (const Action& action : schedule.actions) {
    const bool block = action.unit >= 0 && schedule.traits(action.unit).kind == UnitKind::block;
    if (action.kind == ActionKind::reduce) {
      blocks += block ? 1 : 0;
      if (blocks > schedule.options.sums_under_way) return "more sums of blocks are under way than may be";
      summing.insert(action[Operand::whole_gradients]);
    }
    if (action.kind == ActionKind::await_gradients) {
      blocks -= block ? 1 : 0;
      summing.erase(action[Operand::whole_gradients]);
      sums_done.insert({action.micro_batch, action.unit});
    }
    if (schedule.options.flow.sums_each_pass && writes_gradients(action.kind) &&
        summing.contains(action[Operand::whole_gradients]))
      return "writes gradients that are being summed";
  }
  const auto expected = static_cast<size_t>(
      (!schedule.options.flow.sums_each_pass ? 1 : schedule.options.micro_batches) * schedule.num_layers());
  return sums_done.size() == expected ? "" : "a sum is missing";
}

}  // namespace

TEST_CASE("with delayed updates all weights come back before the first update, else after their own") {
  ScheduleOptions options{.micro_batches = 2, .units = plain_units(6), .flow = parameter_flow(1)};
  const auto tail = [&] {
    const Schedule schedule = training_schedule(options);
    CHECK(check(schedule) == "");
    std::string kinds;
    for (const Action& action : schedule.actions)
      if (action.kind == ActionKind::update || action.kind == ActionKind::gather)
        kinds += action.kind == ActionKind::update ? 'u' : 'g';
    return kinds;
  };
  CHECK(tail() == "ugugugugugug");
  options.flow.updates_delayed = true;
  CHECK(tail() == "gggggguuuuuu");
  // The same actions in the other order.
  Schedule schedule = training_schedule(options);
  const auto norm = std::find_if(schedule.actions.begin(), schedule.actions.end(),
                                 [](const Action& action) { return action.kind == ActionKind::norm; });
  std::reverse(norm + 1, schedule.actions.end());
  CHECK(check(schedule).find("after the update, which writes them") != std::string::npos);
}

TEST_CASE("schedules of every ZeRO stage are sound") {
  for (const ScheduleOptions& options : variants()) {
    INFO(describe(options));
    const Schedule schedule = training_schedule(options);
    CHECK(check(schedule) == "");
    if (options.flow.gathers_weights()) CHECK(misused_weights(schedule) == "");
    if (options.has_gradient_buckets() || options.narrow_sums) CHECK(misused_sums(schedule) == "");
    ScheduleOptions evaluation = options;
    evaluation.micro_batches = 1;
    CHECK(check(evaluation_schedule(evaluation)) == "");
    if (options.flow.gathers_weights()) CHECK(misused_weights(evaluation_schedule(evaluation)) == "");
  }
}

TEST_CASE("as many sums of blocks are under way as the options allow") {
  for (const int32_t most : {1, 2, 3}) {
    const Schedule schedule = training_schedule(
        {.micro_batches = 2, .units = plain_units(7), .flow = parameter_flow(2), .sums_under_way = most});
    CHECK(check(schedule) == "");
    CHECK(misused_sums(schedule) == "");
    int32_t blocks = 0, largest = 0;
    for (const Action& action : schedule.actions) {
      if (action.unit < 0 || schedule.traits(action.unit).kind != UnitKind::block) continue;
      if (action.kind == ActionKind::reduce) largest = std::max(largest, ++blocks);
      if (action.kind == ActionKind::await_gradients) --blocks;
    }
    CHECK(largest == most);
  }
}

TEST_CASE("weights are gathered as far ahead as the options allow") {
  for (const int32_t ahead : {1, 2, 3}) {
    for (const bool recompute : {false, true}) {
      std::vector<UnitTraits> units = units_of(std::vector<bool>(8, recompute));
      if (recompute) units[6].recompute_from = 4;
      const Schedule schedule =
          training_schedule({.micro_batches = 2, .units = units, .flow = parameter_flow(3), .gathers_ahead = ahead});
      CHECK(check(schedule) == "");
      CHECK(misused_weights(schedule) == "");
      for (int32_t unit = 1; unit + ahead < 7; ++unit)
        CHECK(find(schedule, ActionKind::gather, unit + ahead) < find(schedule, ActionKind::forward, unit));
    }
  }
}

TEST_CASE("the second phase of a sum begins after the next unit's backward") {
  for (const int32_t zero : {0, 1, 2, 3}) {
    std::vector<UnitTraits> units = plain_units(7);
    for (UnitTraits& unit : units) unit.sum_phases = unit.kind == UnitKind::block ? 2 : 1;
    const ScheduleOptions options{
        .micro_batches = 2, .units = units, .flow = parameter_flow(zero), .narrow_sums = true, .sums_under_way = 3};
    const Schedule schedule = training_schedule(options);
    CHECK(check(schedule) == "");
    CHECK(misused_sums(schedule) == "");
    const int summed = options.flow.sums_each_pass ? 1 : 0;  // the last of the sums of a unit
    for (int32_t unit = 2; unit < 6; ++unit) {
      const size_t second = find(schedule, ActionKind::reduce_on, unit, summed);
      CHECK(find(schedule, ActionKind::reduce, unit - 1, summed) + 1 == second);
      CHECK(second < find(schedule, ActionKind::await_gradients, unit, summed));
    }
    Schedule broken = schedule;
    erase(broken, find(broken, ActionKind::reduce_on, 3, summed));
    CHECK(check(broken).find("before the last phase of the sum begins") != std::string::npos);
    broken = schedule;
    move(broken, find(broken, ActionKind::reduce_on, 3), find(broken, ActionKind::reduce, 3));
    CHECK(check(broken).find("before the sum begins") != std::string::npos);
    broken = schedule;
    broken.options.units[3].sum_phases = 1;
    CHECK(check(broken).find("its sum has no such phase") != std::string::npos);
  }
}

TEST_CASE("a sum's phases begin one by one, after the backward of one unit each") {
  for (const int32_t zero : {0, 2}) {
    for (const size_t num_units : {3, 7}) {
      std::vector<UnitTraits> units = plain_units(num_units);
      for (UnitTraits& unit : units) unit.sum_phases = unit.kind == UnitKind::block ? 3 : 1;
      const ScheduleOptions options{
          .micro_batches = 3, .units = units, .flow = parameter_flow(zero), .narrow_sums = true, .sums_under_way = 4};
      const Schedule schedule = training_schedule(options);
      CHECK(check(schedule) == "");
      CHECK(misused_sums(schedule) == "");
      if (num_units == 3) continue;
      const int32_t summed = options.flow.sums_each_pass ? 2 : 0;
      const size_t second = find(schedule, ActionKind::reduce_on, 4, 2 * summed);
      const size_t third = find(schedule, ActionKind::reduce_on, 4, 2 * summed + 1);
      CHECK(find(schedule, ActionKind::reduce, 3, summed) < second);
      CHECK(find(schedule, ActionKind::reduce, 2, summed) < third);
      CHECK(third < find(schedule, ActionKind::reduce, 1, summed));
      Schedule broken = schedule;
      erase(broken, third);
      CHECK(check(broken).find("before the last phase of the sum begins") != std::string::npos);
    }
  }
}

TEST_CASE("units are summed once a step, or with ZeRO 2 and 3 once a micro-batch, right after their backward") {
  for (const ScheduleOptions& options : variants()) {
    INFO(describe(options));
    const Schedule schedule = training_schedule(options);
    const int32_t sums = options.flow.sums_each_pass ? options.micro_batches : 1;
    for (int32_t unit = 0; unit < schedule.num_layers(); ++unit) {
      int32_t found = 0;
      for (size_t i = 0; i < schedule.actions.size(); ++i) {
        if (schedule.actions[i].kind != ActionKind::reduce || schedule.actions[i].unit != unit) continue;
        ++found;
        // A narrow sum may have to wait for an earlier one.
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
  for (int32_t unit = 0; unit + 1 < schedule.num_layers(); ++unit) {
    CHECK(find(schedule, ActionKind::gather, unit + 1) < find(schedule, ActionKind::forward, unit));
  }
  // Checks backward too: the block before.
  for (int32_t unit = 3; unit > 1; --unit)
    CHECK(find(schedule, ActionKind::gather, unit - 1, unit > 2 ? 0 : 1) <
          find(schedule, ActionKind::backward_input, unit));
}

TEST_CASE("with ZeRO 1 and 2 updated weights are gathered at once and awaited in the next step") {
  for (const int32_t zero : {1, 2}) {
    const Schedule schedule = schedule_of(zero);
    for (int32_t unit = 0; unit < schedule.num_layers(); ++unit) {
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
      CHECK(fault.find(zero == 3 ? "its weights is not awaited" : "the updated weights of unit 2 are not awaited") !=
            std::string::npos);
    }
  }
  SECTION("weights that no unit uses") {
    const std::string fault = fault_after(schedule_of(3), [](Schedule& s) {
      Action gather{.kind = ActionKind::gather, .unit = 2};
      gather[Operand::weights] = static_cast<int32_t>(s.buffers.size());
      s.buffers.push_back({.kind = BufferKind::weights, .unit = 2});
      s.actions.push_back(gather);
      set_lifetimes(s);
    });
    CHECK(fault.find("what is gathered or received is not awaited") != std::string::npos);
  }
  SECTION("weights awaited after their use") {
    const std::string fault = fault_after(schedule_of(3), [](Schedule& s) {
      move(s, find(s, ActionKind::await_weights, 3), find(s, ActionKind::forward, 3));
    });
    CHECK(fault.find("its weights is not awaited") != std::string::npos);
  }
  SECTION("the head's matrix of a tied head is not there") {
    // The embedding's own use does not show that the loss still needs its weights.
    const std::string fault = fault_after(schedule_of(3, true), [](Schedule& s) {
      Action gather{.kind = ActionKind::gather, .unit = 0};
      gather[Operand::weights] = s.actions[find(s, ActionKind::loss, 5)][Operand::weights];
      s.actions.insert(s.actions.begin() + static_cast<std::ptrdiff_t>(find(s, ActionKind::loss, 5)), gather);
    });
    CHECK(fault.find("its weights is not awaited") != std::string::npos);
  }
  SECTION("another unit's weights") {
    const std::string fault = fault_after(schedule_of(3), [](Schedule& s) {
      s.actions[find(s, ActionKind::forward, 2)][Operand::weights] =
          s.actions[find(s, ActionKind::forward, 1)][Operand::weights];
    });
    CHECK(fault.find("its weights is weights of micro-batch -1, unit 1") != std::string::npos);
  }
  SECTION("gradients written where a sum still reads") {
    for (const int32_t zero : {2, 3}) {
      const std::string fault = fault_after(schedule_of(zero), [](Schedule& s) {
        const int32_t summed = s.actions[find(s, ActionKind::reduce, 4)][Operand::whole_gradients];
        s.buffers[static_cast<size_t>(summed)].unit = 3;  // as if both had one buffer
        s.actions[find(s, ActionKind::backward_weight, 3)][Operand::whole_gradients] = summed;
      });
      CHECK(!fault.empty());
    }
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
        erase(s, find(s, ActionKind::await_gradients, 0, s.options.flow.sums_each_pass ? 1 : 0));
      });
      CHECK(fault.find("before all units are summed") != std::string::npos);
    }
  }
  SECTION("a micro-batch that is never summed") {
    const std::string fault = fault_after(schedule_of(2), [](Schedule& s) {
      erase(s, find(s, ActionKind::reduce, 0));
      erase(s, find(s, ActionKind::await_gradients, 0));
    });
    CHECK(fault.find("before all units are summed") != std::string::npos);
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
