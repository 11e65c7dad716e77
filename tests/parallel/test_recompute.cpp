// memory.recompute = "optimal", alone and with memory.offload_activations = "optimal": the bits of keeping all, within
// its budget, and no slower than other modes.
#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "catch.h"
#include "fit/choose_step.h"
#include "fit/nominal_times.h"
#include "fit/offload_plan.h"
#include "fit/recompute_plan.h"
#include "model_fixture.h"
#include "ops/side_queue.h"
#include "same_outcomes.h"
#include "unit/named_target.h"

namespace test_recompute {

using namespace gptrain;
using namespace gptrain::testing;

namespace {

struct Layout {
  std::string name;
  Family family;
  int64_t ranks;
  Overrides overrides;
};

const std::vector<Layout> layouts = {
    {.name = "alone", .family = Family::gpt2, .ranks = 1, .overrides = {"model.dropout=0.1", "batch.micro=1"}},
    {.name = "alone in one micro-batch", .family = Family::llama, .ranks = 1, .overrides = {"precision.compute=bf16"}},
    {.name = "zero 1",
     .family = Family::llama,
     .ranks = 2,
     .overrides = {"parallel.zero=1", "precision.compute=bf16-pure", "batch.micro=1"}},
    {.name = "zero 2", .family = Family::gpt2, .ranks = 2, .overrides = {"parallel.zero=2", "batch.micro=1"}},
    {.name = "zero 3",
     .family = Family::llama,
     .ranks = 2,
     .overrides = {"parallel.zero=3", "precision.compute=bf16", "batch.micro=1"}},
    {.name = "tensor",
     .family = Family::gpt2,
     .ranks = 2,
     .overrides = {"parallel.tensor=2", "model.num_heads=4", "batch.micro=2"}},
    {.name = "sequence",
     .family = Family::llama,
     .ranks = 2,
     .overrides = {"parallel.tensor=2", "parallel.sequence=true", "batch.micro=2"}},
    {.name = "few bits",
     .family = Family::gpt2,
     .ranks = 1,
     .overrides = {"memory.activation_bits=3", "batch.micro=2"}},
    {.name = "fp8",
     .family = Family::llama,
     .ranks = 1,
     .overrides = {"precision.compute=bf16", "precision.linears=fp8", "run.device=auto", "batch.micro=2"}},
    {.name = "fp8 zero 3",
     .family = Family::llama,
     .ranks = 2,
     .overrides = {"precision.compute=bf16", "precision.linears=fp8", "run.device=auto", "batch.micro=1",
                   "parallel.zero=3"}},
    {.name = "1f1b",
     .family = Family::gpt2,
     .ranks = 2,
     .overrides = {"parallel.pipeline=2", "batch.micro=1", "model.tied_head=false"}},
    {.name = "gpipe few bits",
     .family = Family::gpt2,
     .ranks = 2,
     .overrides = {"parallel.pipeline=2", "parallel.pipeline_schedule=gpipe", "batch.micro=1",
                   "memory.activation_bits=2"}},
    {.name = "varuna zero 2",
     .family = Family::llama,
     .ranks = 4,
     .overrides = {"parallel.pipeline=2", "parallel.pipeline_schedule=varuna", "parallel.zero=2", "batch.micro=1"}},
    {.name = "zero-bubble tensor",
     .family = Family::gpt2,
     .ranks = 4,
     .overrides = {"parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble", "parallel.tensor=2",
                   "model.num_heads=4", "batch.micro=1"}},
    {.name = "interleaved zero 3",
     .family = Family::llama,
     .ranks = 4,
     .overrides = {"parallel.pipeline=2", "parallel.pipeline_schedule=interleaved", "parallel.virtual_stages=2",
                   "parallel.zero=3", "batch.micro=1"}},
    {.name = "zero-bubble-v",
     .family = Family::llama,
     .ranks = 2,
     .overrides = {"parallel.pipeline=2", "parallel.pipeline_schedule=zero-bubble-v", "parallel.virtual_stages=2",
                   "batch.micro=1"}},
    {.name = "norms after",
     .family = Family::llama,
     .ranks = 1,
     .overrides = {"model.norm_after=true", "model.norm_offset=true", "batch.micro=2"}},
};

RunConfig config_of(const Layout& layout, const Overrides& more = {}) {
  Overrides overrides = {"model.num_layers=8",       "model.hidden_size=32",     "model.num_heads=4",
                         "model.sequence_length=16", "model.ffn_hidden_size=64", "batch.global=8"};
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  overrides.insert(overrides.end(), more.begin(), more.end());
  return small_config(layout.family, overrides, layout.ranks);
}

std::vector<RecomputePlanner> planners_of(const RunConfig& config, int64_t ranks,
                                          const Target& target = this_machine(1)) {
  std::vector<RecomputePlanner> planners;
  for (int32_t stage = 0; stage < config.parallel.pipeline; ++stage)
    planners.emplace_back(PlanCase{config, target, ranks}, stage);
  return planners;
}

// Copies run beside ops, as on a GPU.
Target with_copy_lanes() {
  Target target = this_machine(1);
  target.kind = Target::Kind::gpu;
  return target;
}

int64_t least_bytes(const std::vector<RecomputePlanner>& planners) {
  int64_t least = 0;
  for (const RecomputePlanner& planner : planners) least = std::max(least, planner.least().bytes);
  return least;
}

int64_t most_bytes(const std::vector<RecomputePlanner>& planners) {
  int64_t most = 0;
  for (const RecomputePlanner& planner : planners)
    most = std::max(most, planner.fixed({.recompute = RecomputeKind::none}).bytes);
  return most;
}

Overrides with_budget(int64_t bytes) {
  return {"memory.recompute=optimal", fmt::format("memory.activation_budget={}", bytes)};
}

}  // namespace

TEST_CASE("recomputation by an optimal plan has the bits of saved activations, with all kinds of sharding and codecs",
          "[long]") {
  int64_t from_before = 0;
  int64_t in_part = 0;
  for (const Layout& layout : layouts) {
    const RunConfig plain = config_of(layout);
    const std::vector<RecomputePlanner> planners = planners_of(plain, layout.ranks);
    const int64_t least = least_bytes(planners);
    const int64_t most = most_bytes(planners);
    REQUIRE(least < most);
    const Outcome saves_all = train_on_ranks(plain, layout.ranks, 2);
    for (const int64_t tenths : {0, 2, 6}) {
      const int64_t budget = least + (most - least) * tenths / 10;
      INFO(layout.name << ", budget " << budget << " of " << least << " to " << most);
      const Outcome recomputed = train_on_ranks(config_of(layout, with_budget(budget)), layout.ranks, 2);
      require_same(saves_all, recomputed);
      for (const RecomputePlanner& planner : planners) {
        const RecomputeCounts counts = planner.costs().counts(planner.best(budget)->choices);
        from_before += counts.from_before;
        in_part += counts.in_part;
      }
    }
  }
  CHECK(from_before > 0);
  CHECK(in_part > 0);
}

TEST_CASE("an optimal plan keeps within its budget, and is no slower than what takes as much", "[plan]") {
  int below_block = 0;
  for (const Layout& layout : layouts) {
    const RunConfig plain = config_of(layout);
    const std::vector<RecomputePlanner> planners = planners_of(plain, layout.ranks);
    for (const RecomputePlanner& planner : planners) {
      std::vector<RecomputePoint> points = {planner.fixed({.recompute = RecomputeKind::none}),
                                            planner.fixed({.recompute = RecomputeKind::block})};
      if (planner.costs().saves_parts()) points.push_back(planner.fixed({.recompute = RecomputeKind::selective}));
      for (const int64_t interval : {2, 3, 5})
        points.push_back(planner.fixed({.recompute = RecomputeKind::every_nth, .recompute_interval = interval}));
      for (const RecomputePoint& point : points) {
        INFO(layout.name << ", " << point.bytes << " bytes");
        const auto best = planner.best(point.bytes);
        REQUIRE(best);
        CHECK(best->bytes <= point.bytes);
        CHECK(best->recompute_share <= point.recompute_share);
      }
      // More memory needs less time.
      std::vector<RecomputePoint> curve;
      for (const int64_t budget :
           curve_budgets(planner.least().bytes, planner.fixed({.recompute = RecomputeKind::none}).bytes, 5)) {
        const RecomputePoint point = planner.best(budget).value_or(planner.least());
        CHECK(point.bytes <= budget);
        if (curve.empty() || point.recompute_share < curve.back().recompute_share) curve.push_back(point);
      }
      REQUIRE(curve.size() > 2);
      for (size_t i = 1; i < curve.size(); ++i) CHECK(curve[i].bytes > curve[i - 1].bytes);
      CHECK(curve.back().recompute_share == 0);
      CHECK(curve.front().bytes <= planner.fixed({.recompute = RecomputeKind::block}).bytes);
      below_block += curve.front().bytes < planner.fixed({.recompute = RecomputeKind::block}).bytes ? 1 : 0;
    }
    const int64_t budget = (least_bytes(planners) + most_bytes(planners)) / 2;
    const RunConfig config = config_of(layout, with_budget(budget));
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      INFO(layout.name << ", rank " << rank);
      CHECK(plan_rank({config, this_machine(1), layout.ranks}, rank).memory().arenas[MemoryClass::activations] <=
            budget);
    }
  }
  CHECK(below_block > 10);
}

TEST_CASE("a budget that is too small is refused with the smallest that is not", "[plan]") {
  for (const Layout& layout : {layouts[0], layouts[10]}) {
    const RunConfig plain = config_of(layout);
    const std::vector<RecomputePlanner> planners = planners_of(plain, layout.ranks);
    const int64_t least = least_bytes(planners);
    const int stage = planners.front().least().bytes == least ? 0 : 1;
    const auto refusal = [&](int64_t budget) -> std::string {
      try {
        for (int64_t rank = 0; rank < layout.ranks; ++rank)
          plan_rank({config_of(layout, with_budget(budget)), this_machine(1), layout.ranks}, rank);
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::usage);
        return error.what();
      }
      return "";
    };
    CHECK(refusal(least) == "");
    CHECK(refusal(least - 1) ==
          fmt::format("memory.activation_budget = {}: activations of a rank{} take at least {} bytes, however much is "
                      "recomputed (try {})",
                      least - 1, layout.ranks > 1 ? fmt::format(" of stage {}", stage) : "", least, least));
  }
}

TEST_CASE("a budget that fits the device leaves nothing of it that a block could be kept in", "[plan]") {
  const Layout& layout = layouts[0];
  const RunConfig plain = config_of(layout);
  const RunConfig fit = config_of(layout, {"memory.recompute=optimal"});
  Target target = this_machine(1);
  target.memory_bytes = plan_rank({plain, target}).memory().arenas.total();
  // Everything is kept if there is room.
  CHECK(plan_rank({fit, target}).design->choices.units == UnitChoices(static_cast<size_t>(plain.model.num_layers) + 2));
  const RecomputePlanner planner({plain, target, 1}, 0);
  const int64_t least = planner.least().bytes;
  const int64_t most = planner.fixed({.recompute = RecomputeKind::none}).bytes;
  const int64_t others = target.memory_bytes - most;
  for (const int64_t activations : {most - 1, (least + most) / 2, least}) {
    target.memory_bytes = others + activations;
    const StepPlan plan = plan_rank({fit, target});
    CHECK(plan.memory().arenas.total() <= target.memory_bytes);
    CHECK(activation_headroom({plain, target, 1}, 0) == activations);
    CHECK(plan.design->choices.units == planner.best(activations)->choices);
  }
  // On a device that is too small the plan takes the least possible.
  target.memory_bytes = others;
  CHECK(plan_rank({fit, target}).memory().arenas[MemoryClass::activations] == least);
}

TEST_CASE("recomputation and offload in one plan have the bits of saved activations") {
  int64_t copied = 0, copied_and_again = 0;
  for (const size_t of : {0, 4, 7, 10, 12, 15}) {
    const Layout& layout = layouts[of];
    const RunConfig plain = config_of(layout);
    const RunConfig mixed = config_of(layout, {"memory.recompute=optimal", "memory.offload_activations=optimal"});
    const std::vector<RecomputePlanner> planners = planners_of(mixed, layout.ranks, with_copy_lanes());
    const int64_t least = least_bytes(planners);
    const int64_t most = most_bytes(planners);
    REQUIRE(least < most);
    const Outcome saves_all = train_on_ranks(plain, layout.ranks, 2);
    for (const int64_t tenths : {0, 4}) {
      const int64_t budget = least + (most - least) * tenths / 10;
      INFO(layout.name << ", budget " << budget << " of " << least << " to " << most);
      UnitChoices choices(static_cast<size_t>(plain.model.num_layers) + 2);
      for (const RecomputePlanner& planner : planners) {
        const std::optional<RecomputePoint> best = planner.best(budget);
        REQUIRE(best);
        CHECK(best->bytes <= budget);
        const RecomputeCounts counts = planner.costs().counts(best->choices);
        copied += counts.offloaded > 0 ? 1 : 0;
        copied_and_again += counts.offloaded > 0 && counts.in_part + counts.alone + counts.from_before > 0 ? 1 : 0;
        for (size_t unit = 0; unit < choices.size(); ++unit)
          if (best->choices[unit] != UnitChoice{}) choices[unit] = best->choices[unit];
      }
      const Outcome recomputed = train_on_ranks(plain, layout.ranks, 2, nullptr, 0, {.choices = &choices});
      require_same(saves_all, recomputed);
    }
  }
  CHECK(copied > 10);
  CHECK(copied_and_again > 1);
}

TEST_CASE("no more copies are under way than a queue has marks, however slow the link is", "[plan]") {
  const RunConfig config = small_config(Family::gpt2, {"model.num_layers=150"});
  const StepPlan plan = plan_rank({config, with_copy_lanes()});
  const Program& training = *plan.design->training;
  UnitChoices choices(training.schedule.options.units.size());
  ScheduleOptions options = training.schedule.options;
  for (size_t unit = 1; unit + 1 < choices.size(); ++unit)
    choices[unit].offload.part = options.units[unit].offload.part = OffloadedPart::record;
  time_copies(choices, options, training.bytes, with_copy_lanes(), [](const Action&) { return 1e-12; });
  for (size_t unit = 0; unit < choices.size(); ++unit) options.units[unit].offload = choices[unit].offload;
  std::map<ActionKind, int> under_way, most;
  for (const Action& action : training_schedule(options).actions) {
    const bool awaits = action.kind == ActionKind::await_offloaded || action.kind == ActionKind::await_fetched;
    if (!copies_record(action.kind)) continue;
    const ActionKind begun = action.kind == ActionKind::await_offloaded ? ActionKind::offload
                             : action.kind == ActionKind::await_fetched ? ActionKind::fetch
                                                                        : action.kind;
    under_way[begun] += awaits ? -1 : 1;
    most[begun] = std::max(most[begun], under_way[begun]);
  }
  for (const ActionKind lane : {ActionKind::offload, ActionKind::fetch}) {
    CHECK(most[lane] > SideQueue::num_marks / 4);
    CHECK(most[lane] < SideQueue::num_marks);
  }
}

TEST_CASE("passes are played with a copy each way at the same time", "[plan]") {
  const RunConfig config = small_config(Family::gpt2, {"memory.offload_activations=all"});
  const Target target = with_copy_lanes();
  const StepPlan plan = plan_rank({config, target});
  Schedule schedule = plan.design->training->schedule;
  const BufferBytes& bytes = plan.design->training->bytes;
  const double copy = nominal_copy_seconds(record_bytes(bytes, schedule.traits(1), 1), target);
  REQUIRE(copy > 0);
  const auto action = [](ActionKind kind, int32_t unit) {
    return Action{.kind = kind, .micro_batch = 0, .unit = unit};
  };
  schedule.actions = {action(ActionKind::offload, 1), action(ActionKind::fetch, 2), action(ActionKind::forward, 3),
                      action(ActionKind::await_offloaded, 1), action(ActionKind::await_fetched, 2)};
  const auto played = [&](double pass) {
    return play_passes(schedule, bytes, target, [=](const Action&) { return pass; });
  };
  CHECK(played(copy).waited == Approx(0).margin(copy / 1e6));
  CHECK(played(copy / 2).waited == Approx(copy / 2));
  CHECK(played(copy / 2).seconds == Approx(copy));
}

TEST_CASE(
    "a plan that copies to the host keeps its budget, and is no slower than plans that do not or that copy evenly",
    "[plan]") {
  int faster = 0, much_faster = 0, plans = 0, some_hidden = 0;
  for (const size_t of : {1, 4, 8, 12, 13}) {
    const Layout& layout = layouts[of];
    // Copies take about as long as the passes at this size.
    const Overrides large = {"model.hidden_size=1024", "model.num_heads=8", "model.ffn_hidden_size=4096",
                             "model.sequence_length=512"};
    Overrides mixing = large;
    mixing.insert(mixing.end(), {"memory.recompute=optimal", "memory.offload_activations=optimal"});
    const RunConfig mixed = config_of(layout, mixing), alone = config_of(layout, large);
    for (int32_t stage = 0; stage < mixed.parallel.pipeline; ++stage) {
      const RecomputePlanner planner({mixed, with_copy_lanes(), layout.ranks}, stage);
      const RecomputePlanner without({alone, with_copy_lanes(), layout.ranks}, stage);
      const int64_t most = planner.fixed({.recompute = RecomputeKind::none}).bytes;
      for (const int64_t tenths : {1, 4, 7}) {
        const int64_t budget = planner.least().bytes + (most - planner.least().bytes) * tenths / 10;
        INFO(layout.name << ", stage " << stage << ", budget " << budget);
        const std::optional<RecomputePoint> best = planner.best(budget), other = without.best(budget);
        REQUIRE(best);
        CHECK(best->bytes <= budget);
        if (other) CHECK(best->recompute_share <= other->recompute_share);
        ++plans;
        faster += !other || best->recompute_share < other->recompute_share ? 1 : 0;
        for (const RecomputeKind kind : {RecomputeKind::none, RecomputeKind::block}) {
          for (const int64_t blocks : {1, 2, 3, 4, 6, 8}) {
            const RecomputePoint even = planner.fixed({.recompute = kind, .offload = OffloadChoice::of_blocks(blocks)});
            if (even.bytes <= budget) CHECK(best->recompute_share <= even.recompute_share + 0.002);
          }
        }
      }
      std::vector<RecomputeKind> kinds = {RecomputeKind::none, RecomputeKind::block};
      if (planner.costs().saves_parts()) kinds.push_back(RecomputeKind::selective);
      for (const RecomputeKind kind : kinds) {
        const RecomputePoint hidden = planner.fixed({.recompute = kind, .offload = offload::hidden});
        INFO(layout.name << ", stage " << stage << ", hidden, " << hidden.bytes << " bytes");
        RunConfig of_kind = alone;
        of_kind.memory.recompute = kind;
        CHECK(planner.costs().counts(hidden.choices).offloaded ==
              hidden_blocks({of_kind, with_copy_lanes(), layout.ranks}, stage));
        some_hidden += planner.costs().counts(hidden.choices).offloaded > 0 ? 1 : 0;
        const auto best = planner.best(hidden.bytes);
        REQUIRE(best);
        CHECK(best->bytes <= hidden.bytes);
        CHECK(best->recompute_share <= hidden.recompute_share);
      }
      CHECK(planner.least().bytes <= without.least().bytes);
      const auto at_least = planner.best(without.least().bytes);
      REQUIRE(at_least);
      much_faster += at_least->recompute_share < without.least().recompute_share / 2 ? 1 : 0;
    }
  }
  CHECK(faster > plans / 2);
  CHECK(much_faster > 1);
  CHECK(some_hidden > 5);
}

TEST_CASE("a plan of a deep model that copies to the host is no slower than as many blocks as hide", "[long]") {
  // Many equal blocks, of which few are moved: pricing bytes leads to plans that miss the even one.
  for (const char* device : {"a100-80g", "h100"}) {
    for (const int64_t micro : {4, 8, 16}) {
      const Target target = find_target(device);
      const RunConfig config = small_config(
          Family::gpt2, {"model.num_layers=48", "model.hidden_size=1600", "model.num_heads=25",
                         "model.ffn_hidden_size=6400", "model.vocab_size=50257", "model.sequence_length=1024",
                         "precision.compute=bf16", "batch.global=64", fmt::format("batch.micro={}", micro),
                         "run.device=auto", "memory.recompute=optimal", "memory.offload_activations=optimal"});
      INFO(device << " " << micro);
      const RecomputePlanner planner({config, target, 1}, 0);
      for (const RecomputeKind kind : {RecomputeKind::none, RecomputeKind::block}) {
        const RecomputePoint hidden = planner.fixed({.recompute = kind, .offload = offload::hidden});
        REQUIRE(planner.costs().counts(hidden.choices).offloaded > 0);
        REQUIRE(hidden.bytes < planner.fixed({.recompute = kind}).bytes);
        const auto best = planner.best(hidden.bytes);
        REQUIRE(best);
        CHECK(best->bytes <= hidden.bytes);
        CHECK(best->recompute_share <= hidden.recompute_share);
        // The planner offloads as many blocks as a run with these keys.
        RunConfig same = config;
        same.memory.recompute = kind;
        same.memory.offload = offload::hidden;
        CHECK(planner.costs().counts(choose_step({same, target, 1}, 0).units).offloaded ==
              planner.costs().counts(hidden.choices).offloaded);
      }
    }
  }
}

TEST_CASE("an order of passes that depends on recomputation is that of keeping all where optimal may keep all",
          "[plan]") {
  const Target target = find_target("a100-80g");
  const auto config_of = [](const char* recompute) {
    return small_config(
        Family::gpt2,
        {"parallel.pipeline=4", "parallel.pipeline_schedule=varuna", "model.num_layers=8", "batch.global=16",
         "batch.micro=1", "run.device=auto", fmt::format("memory.recompute={}", recompute)},
        4);
  };
  const auto bytes_of = [&](const char* recompute) {
    return plan_rank({config_of(recompute), target, 4}, 0).memory().arenas[MemoryClass::activations];
  };
  const RecomputePlanner planner({config_of("optimal"), target, 4}, 0);
  CHECK(bytes_of("optimal") == bytes_of("none"));
  const auto best = planner.best(bytes_of("none"));
  REQUIRE(best);
  CHECK(best->recompute_share == 0);
  CHECK(planner.fixed({.recompute = RecomputeKind::none}).bytes == bytes_of("none"));
  CHECK(planner.fixed({.recompute = RecomputeKind::block}).bytes == bytes_of("block"));
}

}  // namespace test_recompute
