#include "planner/dry_run.h"

#include <utility>
#include <vector>

#include "fit/shortage.h"
#include "planner/predict.h"
#include "planner/recompute_curve.h"

namespace gptrain::inline planner {
namespace {

// Simulates the step with the first log of each stage. Other ranks of a stage have nearly the same ops.
SimulatedStep simulate_stages(const std::vector<TimedLog>& logs) {
  std::vector<StageLog> stages;
  for (const TimedLog& timed : logs)
    if (timed.stage == std::ssize(stages)) stages.push_back({&timed.log, timed.times});
  return simulate_step(stages);
}

std::vector<StageForecast> stage_forecasts(const WorldPlan& plan) {
  std::vector<StageForecast> stages;
  for (const StagePlan& stage : plan.stages)
    stages.push_back({stage.num_layers, stage.memory.arenas.total(), stage.in_flight, stage.num_offloaded});
  return stages;
}

}  // namespace

PlannedRun plan_run(const RunConfig& config, const PlannedMachine& machine, int64_t world_size, LoggedRanks kept) {
  const Mesh mesh = make_mesh(config, world_size);
  PlannedRun run{.world_size = world_size};
  run.world = plan_world({config, machine.target, world_size}, [&](int64_t rank, StepPlan plan) {
    if (kept == LoggedRanks::none) return;
    const int32_t stage = plan.design->stages.stage;
    const bool is_first = run.logs.empty() || stage != run.logs.back().stage;
    if (!is_first && kept == LoggedRanks::of_stages) return;
    const EventTimes times =
        machine.rates ? EventTimes(*machine.rates, config, config.run.threads, mesh, rank) : EventTimes();
    run.logs.push_back({rank, stage, std::move(plan.log), times});
  });
  if (kept != LoggedRanks::none) run.step = simulate_stages(run.logs);
  return run;
}

DryRun make_dry_run(const RunConfig& config, const PlannedMachine& machine, const PlannedRun& run,
                    const StorageRates& storage) {
  const Target& target = machine.target;
  const WorldPlan& plan = run.world;
  const Mesh mesh = make_mesh(config, run.world_size);
  const std::vector<int64_t> nodes = nodes_of_ranks(run.world_size, target.ranks_per_node);
  DryRun result{
      .config = config,
      .target = target,
      .spec = plan.spec,
      .memory = plan.largest.arenas,
      .ops = plan.ops,
      .checkpoint = forecast_checkpoint(checkpoint_bytes(plan.spec, config), plan.written_bytes, mesh,
                                        target.ranks_per_node, storage),
      .rate = std::nullopt,
      .sources = {},
      .world = {.mesh = mesh, .traffic = plan.traffic, .largest_rank = plan.largest_rank},
      .on_host = fullest_host(plan.on_host, mesh, nodes),
      .stages = stage_forecasts(plan),
      .warnings = plan.warnings,
      .shortage = memory_shortage(config, target, {plan.largest_rank, plan.largest.arenas, plan.on_host, nodes})};
  const Machine* const rates = machine.rates ? &*machine.rates : nullptr;
  if (config.memory.recompute == RecomputeKind::optimal)
    result.recomputation = forecast_recomputation({config, target, run.world_size}, rates, plan);
  if (rates == nullptr) return result;
  if (config.parallel.pipeline > 1) result.pipeline = run.step.pipeline;
  result.forecast = forecast_step(*rates, run.step, run.world_size, result.checkpoint, config.checkpoint.asynchronous);
  const auto tokens = static_cast<double>(config.batch.global * config.model.sequence_length);
  result.rate = TokenRate{tokens / result.forecast->step_seconds, "predicted"};
  return result;
}

}  // namespace gptrain::planner
