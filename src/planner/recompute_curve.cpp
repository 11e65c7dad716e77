#include "planner/recompute_curve.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fit/choose_step.h"
#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"
#include "fit/plan_world.h"
#include "fit/recompute_plan.h"
#include "planner/simulate_step.h"

namespace gptrain::inline planner {
namespace {

// Returns the number of points of a curve: fewer for more stages, since a point needs plans of all of them.
int64_t curve_points(int64_t stages) { return std::clamp<int64_t>(48 / stages, 3, 8); }

// Simulates a step with the choices of `points`, by stage. A stage without choices uses those of the config.
double simulated_step_seconds(const PlanCase& run, const Machine& machine, const std::vector<RecomputePoint>& points) {
  const auto& [config, target, world_size] = run;
  const Mesh mesh = make_mesh(config, world_size);
  std::vector<std::pair<StepLog, EventTimes>> logs;
  for (int64_t stage = 0; stage < config.parallel.pipeline; ++stage) {
    const int64_t rank = mesh.first_rank_of_stage(stage);
    const UnitChoices& units = points[stage].choices;
    const StepChoices choices =
        units.empty() ? choose_step(run, static_cast<int32_t>(stage)) : choices_with(config.memory, target, units);
    logs.emplace_back(plan_step(run, choices, rank).log, EventTimes(machine, config, config.run.threads, mesh, rank));
  }
  std::vector<StageLog> stages;
  for (const auto& [log, times] : logs) stages.push_back({&log, times});
  return simulate_step(stages).pipeline.seconds;
}

// Simulates a few micro-batches instead of many: once all stages are busy, each round of micro-batches takes equally
// long.
double predicted_step_seconds(const PlanCase& run, const Machine& machine, const std::vector<RecomputePoint>& points) {
  const int64_t all = run.config.batch.accumulation;
  const int64_t round = 4 * run.config.parallel.pipeline;
  const int64_t few = round + all % round;
  const auto seconds = [&](int64_t micro_batches) {
    return simulated_step_seconds({with_micro_batches(run.config, micro_batches), run.target, run.world_size}, machine,
                                  points);
  };
  if (all <= few + 2 * round) return seconds(all);
  const double few_seconds = seconds(few);
  const double round_seconds = seconds(few + round) - few_seconds;
  return few_seconds + round_seconds * static_cast<double>((all - few) / round);
}

}  // namespace

RecomputeForecast forecast_recomputation(const PlanCase& run, const Machine* machine, const WorldPlan& plan) {
  const auto& [config, target, world_size] = run;
  RecomputeForecast forecast;
  forecast.budget_bytes = config.memory.activation_budget;
  const bool offloads = config.memory.offload == offload::optimal && target.kind == Target::Kind::gpu;
  std::vector<RecomputePlanner> planners;
  int64_t most_bytes = 0;
  forecast.headroom_bytes = std::numeric_limits<int64_t>::max();
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    forecast.headroom_bytes = std::min(forecast.headroom_bytes, activation_headroom(run, static_cast<int32_t>(stage)));
    const RecomputePlanner& planner = planners.emplace_back(run, static_cast<int32_t>(stage));
    const RecomputePoint chosen = planner.costs().of(plan.choices[stage].units);
    const RecomputeCounts counts = planner.costs().counts(chosen.choices);
    forecast.stages.push_back({counts.saving_all, counts.in_part, counts.alone, counts.from_before, counts.offloaded,
                               chosen.bytes, planner.least().bytes, chosen.recompute_share});
    most_bytes = std::max(most_bytes, planner.fixed({.recompute = RecomputeKind::none}).bytes);
  }
  const auto point_of = [&](std::string name, const PlanCase& of, const std::vector<RecomputePoint>& points) {
    RecomputeForecast::Point point{.name = std::move(name)};
    for (const RecomputePoint& stage : points) {
      point.bytes = std::max(point.bytes, stage.bytes);
      point.recompute_share = std::max(point.recompute_share, stage.recompute_share);
    }
    if (machine != nullptr) point.step_seconds = predicted_step_seconds(of, *machine, points);
    return point;
  };
  // `of`: one planner for each stage.
  const auto add_curve = [&](std::vector<RecomputeForecast::Point>& to, const std::string& name,
                             const std::vector<RecomputePlanner>& of) {
    int64_t least = 0;  // least budget, in bytes, that is possible on all stages
    for (const RecomputePlanner& of_stage : of) least = std::max(least, of_stage.least().bytes);
    for (const int64_t budget : curve_budgets(least, most_bytes, curve_points(config.parallel.pipeline))) {
      std::vector<RecomputePoint> points;
      for (const RecomputePlanner& of_stage : of) points.push_back(of_stage.best(budget).value_or(of_stage.least()));
      RecomputeForecast::Point point = point_of(name, run, points);
      if (to.empty() || (point.bytes > to.back().bytes && point.recompute_share < to.back().recompute_share))
        to.push_back(std::move(point));
    }
  };
  add_curve(forecast.curve, offloads ? "optimal, offload optimal" : "optimal", planners);
  if (offloads) {
    RunConfig without = config;
    without.memory.offload = offload::none;
    std::vector<RecomputePlanner> alone;
    for (int32_t stage = 0; stage < config.parallel.pipeline; ++stage)
      alone.emplace_back(PlanCase{without, target, world_size}, stage);
    add_curve(forecast.without_offload, "optimal", alone);
  }
  const auto add_fixed = [&](std::string name, RecomputeKind kind, auto offloaded) {
    RunConfig fixed = config;
    fixed.memory.recompute = kind;
    std::vector<RecomputePoint> points;
    for (const RecomputePlanner& of_stage : planners)
      points.push_back(of_stage.fixed({.recompute = kind, .offload = offloaded}));
    forecast.others.push_back(point_of(std::move(name), {fixed, target, world_size}, points));
  };
  const auto add_selective_point = [&] {
    RunConfig selective = config;
    selective.memory.recompute = RecomputeKind::selective;
    selective.memory.offload = offload::none;
    std::vector<RecomputePoint> points;
    for (const RecomputePlanner& of_stage : planners) {
      std::optional<RecomputePoint> point = of_stage.costs().selective_point();
      if (!point) return;
      points.push_back(*std::move(point));
    }
    forecast.others.push_back(point_of("selective", {selective, target, world_size}, points));
  };
  add_fixed("none", RecomputeKind::none, offload::none);
  if (planners.front().costs().saves_parts()) add_fixed("selective", RecomputeKind::selective, offload::none);
  add_selective_point();
  add_fixed("block", RecomputeKind::block, offload::none);
  if (!offloads) return forecast;
  add_fixed("none, offload hidden", RecomputeKind::none, offload::hidden);
  add_fixed("none, offload all", RecomputeKind::none, offload::all);
  add_fixed("block, offload all", RecomputeKind::block, offload::all);
  return forecast;
}

}  // namespace gptrain::planner
