#include "fit/choose_step.h"

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "config/axis_sizes.h"
#include "config/faults.h"
#include "config/parallelism.h"
#include "fit/disk_units.h"
#include "fit/fitted_places.h"
#include "fit/fixed_choices.h"
#include "fit/offload_plan.h"
#include "fit/recompute_plan.h"
#include "fit/saving_methods.h"

namespace gptrain::inline fit {
namespace {

UnitChoices choose_units(const PlanCase& run, int32_t stage, std::optional<int64_t> activation_bytes) {
  const auto& [config, target, world_size] = run;
  if (config.memory.recompute != RecomputeKind::optimal) {
    if (config.memory.offload != offload::hidden) return fixed_units(config);
    return fixed_units(with_offloaded_blocks(config, hidden_blocks(run, stage)));
  }
  const RecomputePlanner planner(run, stage);
  const bool fits = config.memory.activation_budget == 0;
  const int64_t budget = !fits              ? config.memory.activation_budget
                         : activation_bytes ? *activation_bytes
                                            : activation_headroom(run, stage);
  if (std::optional<RecomputePoint> best = planner.best(budget)) return std::move(best->choices);
  if (fits) return planner.least().choices;
  int64_t least = 0;
  int32_t of_stage = 0;
  for (int32_t other = 0; other < config.parallel.pipeline; ++other) {
    const int64_t bytes = RecomputePlanner(run, other).least().bytes;
    if (bytes > least) of_stage = other;
    least = std::max(least, bytes);
  }
  const bool offloads = config.memory.offload == offload::optimal && target.kind == Target::Kind::gpu;
  const std::string of_which = config.parallel.pipeline == 1 ? "" : fmt::format(" of stage {}", of_stage);
  Faults faults;
  faults.add("memory.activation_budget", fmt::format("{}", config.memory.activation_budget),
             fmt::format("activations of a rank{} take at least {} bytes, however much is recomputed{}", of_which,
                         least, offloads ? " or offloaded" : ""),
             fmt::format("{}", least));
  throw Error(ExitCode::usage, faults.lines());
}

// A setting that plans for a named GPU may have, and runs on a GPU may not have yet.
struct PlannedOnly {
  std::string setting;  // "optimizer.type = \"muon\""; empty: a run can have all settings
  std::string_view why, nearest;
};

PlannedOnly planned_only(const PlanCase& run) {
  const StepConfig& config = run.config;
  const auto quoted = [](std::string_view key, std::string_view value) {
    return fmt::format("{} = \"{}\"", key, value);
  };
  if (updates_on_host(config.optimizer.type)) return {};
  return {quoted("optimizer.type", optimizer_names[config.optimizer.type]) + " with " +
              quoted("memory.offload_optimizer", run.config.memory.away_name()),
          "it replaces the gradients of all layers before the update", "\"adamw\""};
}

void check_places(const PlanCase& run) {
  const MemoryConfig& memory = run.config.memory;
  if (!memory.keeps_state_away()) return;
  const bool on_gpu = run.target.kind == Target::Kind::gpu;
  const bool is_present = !run.target.identity.empty();  // otherwise it has only been named, for a plan
  if (const PlannedOnly fault = planned_only(run);
      on_gpu && is_present && !fault.setting.empty() && !memory.fits_places())
    throw Error(ExitCode::usage, "{}: works on CPUs and in plans for a named GPU only, as {} (try {})", fault.setting,
                fault.why, fault.nearest);
  if (on_gpu && (memory.fits_places() || memory.offload_optimizer_share < 1) &&
      !updates_on_both(run.config.optimizer.type)) {
    const std::string setting = memory.fits_places() ? "memory.offload_optimizer = \"fit\": cannot be combined"
                                                     : fmt::format("memory.offload_optimizer_share = {:g}: must be 1",
                                                                   memory.offload_optimizer_share);
    throw Error(ExitCode::usage,
                "{} on a GPU with optimizer.type = \"{}\", which reads gradients of whole tensors before the update",
                setting, optimizer_names[run.config.optimizer.type]);
  }
  if (!on_gpu && memory.needs_gpu())
    throw Error(ExitCode::usage,
                "memory.offload_optimizer = \"host\": on a CPU the state lies in the host's memory anyway (try "
                "\"disk\" or \"none\")");
  const int64_t replicas = replicas_of_parameters(run.config.parallel, run.world_size);
  const int64_t zero = run.config.parallel.zero;
  const auto needs = [&](const char* key, StatePlace place, bool is_cut, const char* stages) {
    if (place != StatePlace::none && replicas > 1 && !is_cut)
      throw Error(ExitCode::usage,
                  "{} = \"{}\": needs parallel.zero = {} with {} {} ranks, as each stores its own piece (try "
                  "parallel.zero = 3)",
                  key, memory.away_name(), stages, replicas,
                  run.config.parallel.context > 1 ? "data and context" : "data");
  };
  needs("memory.offload_parameters", memory.offload_parameters, cuts_weights(zero), "3");
  needs("memory.offload_gradients", memory.offload_gradients, cuts_gradients(zero), "2 or 3");
}

// Returns the choices that take the least memory of those that choose_units may make.
UnitChoices smallest_units(const PlanCase& run, int32_t stage) {
  const MemoryConfig& memory = run.config.memory;
  if (memory.recompute != RecomputeKind::optimal || memory.activation_budget > 0) return choose_units(run, stage, {});
  return RecomputePlanner(run, stage).least().choices;
}

// Returns the words for places that were chosen by "fit".
std::string text_of_places(const MemoryConfig& memory, size_t num_units) {
  if (!memory.keeps_state_away()) return {};
  const auto at_home = static_cast<size_t>((1 - memory.offload_optimizer_share) * static_cast<double>(num_units));
  return fmt::format(
      "memory.offload_optimizer = \"fit\": memory is short, so the optimizer state{} of the last {} of {} units "
      "(embedding, layers and head) lies on {}",
      memory.offload_parameters != StatePlace::none ? " and the weights" : "", num_units - at_home, num_units,
      memory.uses_disk() ? "disk" : "the host");
}

}  // namespace

StepChoices choose_step(const PlanCase& run, int32_t stage, std::optional<int64_t> activation_bytes) {
  check_places(run);
  if (!run.config.memory.fits_places()) {
    StepChoices choices = choices_with(run.config.memory, run.target, choose_units(run, stage, activation_bytes));
    if (run.config.memory.disk_units == 0 && choices.keeps_state_on_disk())
      choices.landed_units = busy_disk_units(run, stage, choices);
    const bool on_gpu = run.target.kind == Target::Kind::gpu && run.config.memory.keeps_state_away();
    if (const PlannedOnly fault = planned_only(run); on_gpu && !fault.setting.empty())
      choices.warning =
          fmt::format("{}: for planning only: a run on a GPU refuses it, as {}", fault.setting, fault.why);
    return choices;
  }
  RunConfig placed = run.config;
  placed.memory = fitted_places(run, stage, smallest_units(run, stage));
  StepChoices choices = choose_step({placed, run.target, run.world_size}, stage, activation_bytes);
  choices.warning = text_of_places(placed.memory, choices.units.size());
  return choices;
}

StepChoices smallest_step(const PlanCase& run, int32_t stage) {
  check_places(run);
  const UnitChoices units = smallest_units(run, stage);
  return choices_with(fitted_places(run, stage, units), run.target, units);
}

StepPlan plan_rank(const PlanCase& run, int64_t rank) {
  const int32_t stage = make_mesh(run.config, run.world_size).stage_of(rank);
  return plan_step(run, choose_step(run, stage), rank);
}

}  // namespace gptrain::fit
