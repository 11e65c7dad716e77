#include "planner/recompute_curve.h"

#include <string>
#include <utility>
#include <vector>

#include "planner/simulate_step.h"
#include "train/recompute_plan.h"

namespace gptrain {
namespace {

constexpr int64_t curve_points = 8;

// Predicted, with such choices of all stages.
double predicted_step_seconds(const RunConfig& config, const Target& target, const Machine& machine, int64_t world_size,
                              const std::vector<RecomputePoint>& points) {
  const Mesh mesh = make_mesh(config, world_size);
  std::vector<std::pair<StepLog, EventTimes>> logs;
  for (int64_t stage = 0; stage < config.parallel.pipeline; ++stage) {
    MeshPoint point;
    point[MeshAxis::pipeline] = stage;
    const int64_t rank = mesh.rank_of(point);
    const UnitChoices& choices = points[static_cast<size_t>(stage)].choices;
    logs.emplace_back(plan_step(config, target, world_size, rank, nullptr, &choices).log,
                      EventTimes(machine, config, mesh, rank));
  }
  std::vector<StageLog> stages;
  for (const auto& [log, times] : logs) stages.push_back({&log, times});
  return simulate_step(stages).pipeline.seconds;
}

}  // namespace

RecomputeForecast forecast_recomputation(const RunConfig& config, const Target& target, const Machine* machine,
                                         int64_t world_size, const WorldPlan& plan) {
  RecomputeForecast forecast{.budget_bytes = config.memory.activation_budget, .stages = {}, .curve = {}, .others = {}};
  std::vector<RecomputePlanner> planners;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const RecomputePlanner& planner =
        planners.emplace_back(config, target, world_size, static_cast<int32_t>(stage));
    const RecomputePoint chosen = planner.weighed(plan.choices[stage]);
    const RecomputeCounts counts = planner.counts(chosen.choices);
    forecast.stages.push_back({counts.kept, counts.in_part, counts.alone, counts.from_before, chosen.bytes,
                               planner.least().bytes, chosen.again_share});
    if (chosen.bytes > forecast.stages[static_cast<size_t>(forecast.curve_stage)].bytes)
      forecast.curve_stage = static_cast<int64_t>(stage);
  }
  const auto curve_stage = static_cast<size_t>(forecast.curve_stage);
  const RecomputePlanner& planner = planners[curve_stage];
  const auto add = [&](std::vector<RecomputeForecast::Point>& to, std::string name,
                       const std::vector<RecomputePoint>& points) {
    const RecomputePoint& point = points[curve_stage];
    to.push_back({std::move(name), point.bytes, point.again_share,
                  machine != nullptr ? predicted_step_seconds(config, target, *machine, world_size, points) : 0});
  };
  for (const RecomputePoint& of_stage : planner.curve(curve_points)) {
    std::vector<RecomputePoint> points;
    for (const RecomputePlanner& other : planners)
      points.push_back(&other == &planner ? of_stage : other.best(of_stage.bytes).value_or(other.least()));
    add(forecast.curve, "optimal", points);
  }
  const std::vector<std::pair<std::string, RecomputeKind>> kinds = {
      {"none", RecomputeKind::none}, {"selective", RecomputeKind::selective}, {"block", RecomputeKind::block}};
  for (const auto& [name, kind] : kinds) {
    if (kind == RecomputeKind::selective && !planner.keeps_parts()) continue;
    std::vector<RecomputePoint> points;
    for (const RecomputePlanner& other : planners) points.push_back(other.fixed(kind));
    add(forecast.others, name, points);
  }
  return forecast;
}

}  // namespace gptrain
