#include "planner/predict.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <utility>

#include "config/axis_sizes.h"
#include "config/context_method.h"
#include "fit/plan_world.h"
#include "machine/hierarchy_times.h"
#include "planner/link_needs.h"
#include "planner/run_speed.h"

namespace gptrain::inline planner {

Saving best_saving(const SaveTimes& save, double mtbf_seconds, double restart_seconds) {
  Saving saving;
  saving.best_interval = std::max(std::sqrt(2 * save.cost * mtbf_seconds), save.durable);
  const double lost = save.cost / saving.best_interval +
                      (saving.best_interval / 2 + save.durable - save.cost + restart_seconds) / mtbf_seconds;
  saving.goodput = std::max(0.0, 1 - lost);
  return saving;
}

namespace {

// Returns the seconds in which all devices of a node copy their parts of a checkpoint, without the cloned bytes, into
// its memory at the same time.
double copy_seconds(const ClusterProfile& cluster, const CheckpointForecast& checkpoint) {
  return checkpoint.copied_share *
         std::max(static_cast<double>(checkpoint.rank_bytes) / cluster.host_bytes_per_second,
                  static_cast<double>(checkpoint.node_bytes) / cluster.host_memory_bytes_per_second);
}

}  // namespace

std::string machine_name(const Machine& machine) {
  if (machine.cluster.measured) return machine.device.name;
  return fmt::format("{} in {} nodes", machine.device.name, machine.cluster.name);
}

std::string step_origin(const Machine& machine) {
  if (is_measured(machine)) return "";
  if (!machine.software.is_own())
    return fmt::format("Times are those of {} ({}), not of gptrain.", machine.software.release, machine.software.name);
  return fmt::format("gptrain was never measured on {}: its own model gives these times, not a run.",
                     machine.device.name);
}

std::optional<Machine> published_machine(const Machine& machine, int64_t zero) {
  if (is_measured(machine) || !machine.software.is_own()) return std::nullopt;
  return run_by(machine, published_software(machine.device.compute_capability, zero));
}

StorageRates storage_rates(const ClusterProfile& cluster) {
  return {.shared = cluster.storage_bytes_per_second, .local = cluster.drives.all_written()};
}

StepForecast forecast_step(const Machine& machine, const SimulatedStep& step, int64_t world_size,
                           const CheckpointForecast& checkpoint, bool asynchronous) {
  StepForecast forecast;
  forecast.machine = machine_name(machine);
  forecast.software = machine.software.name;
  forecast.origin = step_origin(machine);
  forecast.step_seconds = step.pipeline.seconds;
  forecast.bubble_seconds = step.bubble_seconds;
  forecast.exposed_seconds = step.exposed_seconds;
  forecast.longest_waits = step.longest_waits;
  for (size_t spending = 0; spending < num_spendings; ++spending) {
    if (step.critical[spending] > 0)
      forecast.critical_path.emplace_back(spending_name(spending), step.critical[spending]);
  }
  std::stable_sort(forecast.critical_path.begin(), forecast.critical_path.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  const double nodes = std::ceil(static_cast<double>(world_size) / static_cast<double>(machine.cluster.gpus_per_node));
  const double copied = asynchronous ? copy_seconds(machine.cluster, checkpoint) : 0;
  forecast.checkpoint_cost_seconds = asynchronous ? copied : checkpoint.seconds;
  const Saving saving = best_saving({forecast.checkpoint_cost_seconds, copied + checkpoint.seconds},
                                    machine.cluster.node_mtbf_seconds / nodes, machine.cluster.restart_seconds);
  forecast.best_checkpoint_interval = saving.best_interval;
  forecast.goodput = saving.goodput;
  return forecast;
}

Target planned_target(const Machine& machine, int64_t threads, int64_t world_size) {
  Target target = target_of(machine.device, machine.cluster, threads, world_size);
  target.of_processes = true;
  return target;
}

CheckpointForecast planned_checkpoint(const Machine& machine, const StepConfig& config, const WorldPlan& plan,
                                      int64_t world_size) {
  const int64_t bytes = checkpoint_bytes(plan.spec, config, replicas_of_parameters(config.parallel, world_size));
  return forecast_checkpoint(bytes, plan.written_bytes, make_mesh(config, world_size),
                             target_of(machine.device, machine.cluster).ranks_per_node, storage_rates(machine.cluster),
                             plan.largest.arenas);
}

Prediction predict_run(const RunConfig& asked, const Machine& machine, int64_t world_size) {
  const Target target = planned_target(machine, asked.run.threads, world_size);
  RunConfig config = asked;
  choose_context_method(config, leaves_node(config.parallel, target.ranks_per_node));
  choose_planned_hierarchy(config, target, &machine, world_size);
  const Mesh mesh = make_mesh(config, world_size);
  Prediction prediction;
  std::vector<StepLog> logs;  // by stage: log of its first rank; other ranks have nearly the same ops
  std::vector<EventTimes> times;
  prediction.plan = plan_world({config, target, world_size}, [&](int64_t rank, StepPlan plan) {
    if (plan.design->stages.stage != std::ssize(logs)) return;
    logs.push_back(std::move(plan.log));
    times.emplace_back(machine, config, config.run.threads, mesh, rank);
  });
  std::vector<StageLog> stages;
  for (size_t i = 0; i < logs.size(); ++i) stages.push_back({&logs[i], times[i]});
  prediction.step = simulate_step(stages);
  prediction.forecast =
      forecast_step(machine, prediction.step, world_size,
                    planned_checkpoint(machine, config, prediction.plan, world_size), config.checkpoint.asynchronous);
  prediction.forecast.error = expected_error(machine, config.parallel.zero);
  return prediction;
}

LayoutResult layout_result(const RunConfig& config, const Target& target, const WorldPlan& plan,
                           const StepForecast& forecast, const RunLayout& layout, double price) {
  const RunSpeed speed =
      run_speed(config, config.run.steps, target, plan.ops, layout.world_size(), forecast.step_seconds);
  LayoutResult result;
  result.layout = layout;
  result.is_exact = result.is_peak_exact = true;
  result.step_seconds = forecast.step_seconds;
  result.bubble_seconds = forecast.bubble_seconds;
  result.exposed_seconds = forecast.exposed_seconds;
  result.peak_bytes = plan.largest.arenas.total();
  result.host_bytes = fullest_host(plan.on_host, make_mesh(config, layout.world_size()),
                                   nodes_of_ranks(layout.world_size(), target.ranks_per_node))
                          .total();
  result.tokens_per_second = speed.tokens_per_second;
  result.mfu = speed.mfu;
  result.model_flops = speed.model_flops_per_gpu * static_cast<double>(layout.world_size());
  result.gpu_hours = speed.gpu_hours;
  result.goodput = forecast.goodput;
  result.cost = price * speed.gpu_hours / result.goodput;
  return result;
}

LayoutResult predict_layout(const RunConfig& config, const Machine& machine, const RunLayout& layout, double price) {
  const Prediction prediction = predict_run(config, machine, layout.world_size());
  LayoutResult result = layout_result(config, planned_target(machine, config.run.threads, layout.world_size()),
                                      prediction.plan, prediction.forecast, layout, price);
  result.lacks_on_drives = missing_on_drives(prediction.plan.largest.arenas, machine, layout.world_size());
  return result;
}

}  // namespace gptrain::planner
