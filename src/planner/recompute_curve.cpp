#include "planner/recompute_curve.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/simulate_step.h"
#include "train/offload_plan.h"
#include "train/recompute_plan.h"

namespace gptrain {
namespace {

// Each point takes a step that is planned on all stages.
int64_t curve_points(int64_t stages) { return std::clamp<int64_t>(48 / stages, 3, 8); }

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
  RecomputeForecast forecast;
  forecast.budget_bytes = config.memory.activation_budget;
  const bool offloads = config.memory.offload_activations == optimal_offload && target.kind == Target::Kind::gpu;
  std::vector<RecomputePlanner> planners;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const RecomputePlanner& planner =
        planners.emplace_back(config, target, world_size, static_cast<int32_t>(stage));
    const RecomputePoint chosen = planner.weighed(plan.choices[stage]);
    const RecomputeCounts counts = planner.counts(chosen.choices);
    forecast.stages.push_back({counts.kept, counts.in_part, counts.alone, counts.from_before, counts.offloaded, chosen.bytes,
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
  // `of`: one planner a stage.
  const auto add_curve = [&](std::vector<RecomputeForecast::Point>& to, const std::string& name,
                             const std::vector<RecomputePlanner>& of) {
    for (const RecomputePoint& of_stage : of[curve_stage].curve(curve_points(config.parallel.pipeline))) {
      std::vector<RecomputePoint> points;
      for (size_t stage = 0; stage < of.size(); ++stage)
        points.push_back(stage == curve_stage ? of_stage : of[stage].best(of_stage.bytes).value_or(of[stage].least()));
      add(to, name, points);
    }
  };
  add_curve(forecast.curve, offloads ? "optimal, offload optimal" : "optimal", planners);
  if (offloads) {
    RunConfig without = config;
    without.memory.offload_activations = no_offload;
    std::vector<RecomputePlanner> alone;
    for (int32_t stage = 0; stage < config.parallel.pipeline; ++stage) alone.emplace_back(without, target, world_size, stage);
    add_curve(forecast.without_offload, "optimal", alone);
  }
  const auto add_fixed = [&](std::string name, RecomputeKind kind, int64_t offload) {
    RunConfig fixed = config;
    fixed.memory.recompute = kind;
    std::vector<RecomputePoint> points;
    for (size_t stage = 0; stage < planners.size(); ++stage) {
      const int64_t blocks =
          offload == hidden_offload ? hidden_blocks(fixed, target, world_size, static_cast<int32_t>(stage)) : offload;
      points.push_back(planners[stage].fixed(kind, 0, blocks));
    }
    add(forecast.others, std::move(name), points);
  };
  add_fixed("none", RecomputeKind::none, no_offload);
  if (planner.keeps_parts()) add_fixed("selective", RecomputeKind::selective, no_offload);
  add_fixed("block", RecomputeKind::block, no_offload);
  if (!offloads) return forecast;
  add_fixed("none, offload hidden", RecomputeKind::none, hidden_offload);
  add_fixed("none, offload all", RecomputeKind::none, all_offload);
  add_fixed("block, offload all", RecomputeKind::block, all_offload);
  return forecast;
}

}  // namespace gptrain
