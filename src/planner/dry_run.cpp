#include "planner/dry_run.h"

#include <fmt/format.h>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text_parts.h"
#include "config/zero_one_steps.h"
#include "fit/shortage.h"
#include "planner/predict.h"
#include "planner/recompute_curve.h"

namespace gptrain::inline planner {
namespace {

// Returns the first log of each stage. Other ranks of a stage have nearly the same ops.
template <typename TimesOf>
std::vector<StageLog> first_logs(const std::vector<TimedLog>& logs, const TimesOf& times_of) {
  std::vector<StageLog> stages;
  for (const TimedLog& timed : logs)
    if (timed.stage == std::ssize(stages)) stages.push_back({&timed.log, times_of(timed)});
  return stages;
}

std::vector<StageForecast> stage_forecasts(const WorldPlan& plan) {
  std::vector<StageForecast> stages;
  for (const StagePlan& stage : plan.stages)
    stages.push_back({stage.num_layers, stage.memory.arenas.total(), stage.in_flight, stage.num_offloaded});
  return stages;
}

OwnAttention own_attention_of(const std::vector<TimedLog>& logs) {
  for (const TimedLog& timed : logs)
    for (const EventBlock& block : timed.log.blocks)
      for (const Event& event : block)
        if (event.products.own != OwnAttention::no) return event.products.own;
  return OwnAttention::no;
}

// Returns the setting because of which gptrain's own kernels compute attention.
std::string setting_of(OwnAttention own, const RunConfig& config, const Target& target) {
  switch (own) {
    case OwnAttention::no:
      break;
    case OwnAttention::f32:
      return "precision.compute = fp32";
    case OwnAttention::dropout:
      return fmt::format("model.attention_dropout = {:g}", config.model.attention_dropout);
    case OwnAttention::softcap:
      return fmt::format("model.attention_softcap = {:g}", config.model.attention_softcap);
    case OwnAttention::sinks:
      return "model.attention_sinks = true";
    case OwnAttention::largest_scores:
      return fmt::format("optimizer.qk_clip = {:g}", config.optimizer.qk_clip);
    case OwnAttention::pattern:
      return config.parallel.context_method == ContextMethod::ring ? "parallel.context_method = ring"
                                                                   : "model.attention_pattern";
    case OwnAttention::documents:
      return "data.mask_documents without data.max_documents";
    case OwnAttention::head_size:
      return fmt::format("model.head_size = {}", config.model.head_size);
    case OwnAttention::length:
      return fmt::format("model.sequence_length = {}", config.model.sequence_length);
    case OwnAttention::workspace:
      return fmt::format("data.max_documents = {}", config.data.max_documents);
    case OwnAttention::fixed_bits:
      return "run.deterministic = true";
    case OwnAttention::device:
      return fmt::format("compute capability {:.1f}", target.compute_capability);
  }
  return "";
}

// Returns a line on slow kernels of attention and their cost; empty if they take less than one percent of the step.
std::string own_attention_line(const RunConfig& config, const Target& target, const PlannedRun& run) {
  const double share = run.own_attention_seconds / run.step.pipeline.seconds;
  if (run.own_attention == OwnAttention::no || share < 0.01) return "";
  return fmt::format(
      "attention: gptrain's own kernels compute it because of {}, which takes {} of the step ({:.1f}%)\n",
      setting_of(run.own_attention, config, target), seconds_text(run.own_attention_seconds), 100 * share);
}

// Returns the section with the places that stages chose instead of "fit": the slowest of each kind of values.
MemoryConfig chosen_places(MemoryConfig memory, const std::vector<StepChoices>& of_stages) {
  if (!memory.fits_places()) return memory;
  memory.offload_optimizer = memory.offload_parameters = StatePlace::none;
  const auto has = [](const StepChoices& choices, MemoryPlace place) {
    return std::find(choices.optimizer_state.begin(), choices.optimizer_state.end(), place) !=
           choices.optimizer_state.end();
  };
  for (const StepChoices& choices : of_stages) {
    if (has(choices, MemoryPlace::disk))
      memory.offload_optimizer = StatePlace::disk;
    else if (has(choices, MemoryPlace::pinned_host) && !memory.uses_disk())
      memory.offload_optimizer = StatePlace::host;
    if (choices.weights == Residency::away) memory.offload_parameters = memory.offload_optimizer;
  }
  return memory;
}

}  // namespace

PlannedRun plan_run(const RunConfig& config, const PlannedMachine& machine, int64_t world_size, LoggedRanks logged,
                    bool keeps_timeline) {
  const Mesh mesh = make_mesh(config, world_size);
  PlannedRun run{.world_size = world_size};
  run.world = plan_world({config, machine.target, world_size}, [&](int64_t rank, StepPlan plan) {
    if (logged == LoggedRanks::none) return;
    const int32_t stage = plan.design->stages.stage;
    const bool is_first = run.logs.empty() || stage != run.logs.back().stage;
    if (!is_first && logged == LoggedRanks::of_stages) return;
    const EventTimes times =
        machine.rates ? EventTimes(*machine.rates, config, config.run.threads, mesh, rank) : EventTimes();
    run.logs.push_back({rank, stage, std::move(plan.log), times});
  });
  if (logged == LoggedRanks::none) return run;
  run.own_attention = own_attention_of(run.logs);
  for (const TimedLog& timed : run.logs) {
    const LinkBytes bytes = link_bytes(timed.log);
    if (bytes.all() > run.links.all()) run.links = bytes;
  }
  // Simulates the step of another machine beside that of this one.
  const auto begin_on = [&](const Machine& other) {
    return std::async(std::launch::async | std::launch::deferred, [&run, &config, &mesh, other] {
      const auto times = [&](const TimedLog& timed) {
        return EventTimes(other, config, config.run.threads, mesh, timed.rank);
      };
      return simulate_step(first_logs(run.logs, times)).pipeline.seconds;
    });
  };
  std::future<double> on_library, on_published;
  if (machine.rates && machine.rates->software.own_attention && run.own_attention != OwnAttention::no) {
    Machine library = *machine.rates;
    library.software.own_attention = false;
    on_library = begin_on(library);
  }
  const std::optional<Machine> published =
      machine.rates ? published_machine(*machine.rates, config.parallel.zero) : std::nullopt;
  if (published) on_published = begin_on(*published);
  run.step = simulate_step(first_logs(run.logs, [](const TimedLog& timed) { return timed.times; }),
                           {.keeps_timeline = keeps_timeline});
  if (on_library.valid()) run.own_attention_seconds = run.step.pipeline.seconds - on_library.get();
  if (on_published.valid()) run.published = {published->software.release, on_published.get()};
  return run;
}

namespace {

// Adds the times of warm-up steps and averagings. Returns the mean time of a step.
double forecast_local_steps(DryRun& run, const PlannedMachine& machine, int64_t world_size) {
  const LocalStepsConfig& local = run.config.parallel.local_steps;
  StepForecast& forecast = *run.forecast;
  const double warm_up = static_cast<double>(local.start_step) / static_cast<double>(run.config.run.steps);
  const double averaging = (1 - warm_up) / static_cast<double>(local.every);
  const auto seconds_with = [&](const LocalStepsConfig& other) {
    RunConfig changed = run.config;
    changed.parallel.local_steps = other;
    return plan_run(changed, machine, world_size, LoggedRanks::of_stages).step.pipeline.seconds;
  };
  LocalStepsConfig always = local;
  always.every = 1;
  always.start_step = 0;
  forecast.warm_up_steps = local.start_step;
  forecast.averaging_every = local.every;
  if (warm_up > 0) forecast.warm_up_seconds = seconds_with({});
  forecast.averaging_seconds = local.every > 1 ? seconds_with(always) : forecast.step_seconds;
  return warm_up * forecast.warm_up_seconds + averaging * forecast.averaging_seconds +
         (1 - warm_up - averaging) * forecast.step_seconds;
}

// Adds the times of zero-one-adam's steps. Returns the mean time of a step.
double forecast_zero_one(DryRun& run, const PlannedMachine& machine, int64_t world_size) {
  const OptimizerConfig& optimizer = run.config.optimizer;
  const int64_t steps = run.config.run.steps;
  const ZeroOneCounts counts = count_zero_one_steps(optimizer, steps);
  StepForecast& forecast = *run.forecast;
  const auto seconds_with = [&](const auto& change) {
    RunConfig changed = run.config;
    change(changed.optimizer);
    return plan_run(changed, machine, world_size, LoggedRanks::of_stages).step.pipeline.seconds;
  };
  double sum = 0;
  if (counts.variance > 0)
    sum += static_cast<double>(counts.variance) * seconds_with([&](OptimizerConfig& other) {
             other.freeze_step = steps;
             other.variance_scaler = steps;
           });
  if (counts.moment > 0)
    sum += static_cast<double>(counts.moment) * seconds_with([&](OptimizerConfig& other) {
             other.freeze_step = steps;
             other.variance_scaler = 1;
           });
  forecast.warm_up_steps = counts.variance + counts.moment;
  if (forecast.warm_up_steps > 0) forecast.warm_up_seconds = sum / static_cast<double>(forecast.warm_up_steps);
  forecast.warm_up_work = "with sums in fp32 in ever fewer of them, else of signs";
  if (counts.exchange > 0) {
    forecast.averaging_seconds =
        counts.local > 0 ? seconds_with([](OptimizerConfig& other) { other.local_most = 1; }) : forecast.step_seconds;
    forecast.averaging_every = (counts.exchange + counts.local) / counts.exchange;
    forecast.averaging_work = "ranks exchange their momenta";
  }
  sum += static_cast<double>(counts.exchange) * forecast.averaging_seconds +
         static_cast<double>(counts.local) * forecast.step_seconds;
  return sum / static_cast<double>(steps);
}

}  // namespace

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
      .checkpoint = forecast_checkpoint(
          checkpoint_bytes(plan.spec, config, mesh.size(MeshAxis::data) * mesh.size(MeshAxis::context)),
          plan.written_bytes, mesh, target.ranks_per_node, storage, plan.largest.arenas),
      .rate = std::nullopt,
      .sources = {},
      .world = {.mesh = mesh,
                .traffic = plan.traffic,
                .other_traffic = plan.other_traffic,
                .largest_rank = plan.largest_rank},
      .on_host = fullest_host(plan.on_host, mesh, nodes),
      .stages = stage_forecasts(plan),
      .warnings = plan.warnings,
      .shortage = memory_shortage(config, target, {plan.largest_rank, plan.largest.arenas, plan.on_host, nodes})};
  const Machine* const rates = machine.rates ? &*machine.rates : nullptr;
  if (config.memory.recompute == RecomputeKind::optimal)
    result.recomputation = forecast_recomputation({config, target, run.world_size}, rates, plan);
  if (rates == nullptr) return result;
  if (const int64_t missing = missing_on_drives(result.memory, *rates, run.world_size); missing > 0)
    result.shortage += fmt::format("{}Does not fit: {} are missing on the drives of a node of {}.",
                                   result.shortage.empty() ? "" : "\n", bytes_text(missing), rates->cluster.name);
  if (config.parallel.pipeline > 1) result.pipeline = run.step.pipeline;
  result.forecast = forecast_step(*rates, run.step, run.world_size, result.checkpoint, config.checkpoint.asynchronous);
  result.forecast->error = expected_error(*rates, config.parallel.zero);
  result.forecast->published = run.published;
  result.links = run.links;
  if (const MemoryConfig memory = chosen_places(config.memory, plan.choices); memory.keeps_state_away()) {
    result.link_needs = link_needs(config, memory, *rates, run.world_size);
    result.sustained_flops = sustained_flops(config.precision, *rates, run.world_size);
  }
  result.warnings += own_attention_line(config, target, run);
  const auto tokens = static_cast<double>(config.batch.global * config.model.sequence_length);
  double seconds = result.forecast->step_seconds;
  const auto seconds_of = [&](const auto& other) {
    return plan_run(other, machine, run.world_size, LoggedRanks::of_stages).step.pipeline.seconds;
  };
  if (config.compression().alternate) {
    // A run that is a step longer ends with the other factors.
    RunConfig longer = config;
    ++longer.run.steps;
    seconds = (seconds + seconds_of(longer)) / 2;
  }
  if (const int64_t start = config.compression().start_step; start > 0) {
    result.forecast->warm_up_steps = start;
    RunConfig warm_up = config;
    warm_up.comm.compression = {};
    if (config.optimizer.type == OptimizerKind::onebit_adam) warm_up.optimizer.type = OptimizerKind::adamw;
    result.forecast->warm_up_seconds = seconds_of(warm_up);
    const double share = static_cast<double>(start) / static_cast<double>(config.run.steps);
    seconds = share * result.forecast->warm_up_seconds + (1 - share) * seconds;
  }
  if (config.optimizer.type == OptimizerKind::zero_one_adam)
    seconds = forecast_zero_one(result, machine, run.world_size);
  if (config.parallel.local_steps.is_on()) seconds = forecast_local_steps(result, machine, run.world_size);
  result.rate = TokenRate{tokens / seconds, "predicted"};
  return result;
}

}  // namespace gptrain::planner
