#include "fit/choose_step.h"

#include <fmt/format.h>
#include <string>
#include <utility>

#include "base/error.h"
#include "config/faults.h"
#include "fit/fixed_choices.h"
#include "fit/offload_plan.h"
#include "fit/recompute_plan.h"

namespace gptrain::inline fit {
namespace {

UnitChoices choose_units(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage,
                         std::optional<int64_t> room) {
  if (config.memory.recompute != RecomputeKind::optimal) {
    RunConfig fixed = config;
    if (config.memory.offload == offload::hidden)
      fixed.memory.offload = OffloadChoice::of_blocks(hidden_blocks(config, target, world_size, stage));
    return fixed_units(fixed);
  }
  const RecomputePlanner planner(config, target, world_size, stage);
  const bool fits = config.memory.activation_budget == 0;
  const int64_t budget = !fits  ? config.memory.activation_budget
                         : room ? *room
                                : activation_room(config, target, world_size, stage);
  if (std::optional<RecomputePoint> best = planner.best(budget)) return std::move(best->choices);
  if (fits) return planner.least().choices;
  int64_t least = 0;
  int32_t of_stage = 0;
  for (int32_t other = 0; other < config.parallel.pipeline; ++other) {
    const int64_t bytes = RecomputePlanner(config, target, world_size, other).least().bytes;
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
  throw Error(ExitCode::usage, "{}", faults.text());
}

}  // namespace

StepChoices choose_step(const RunConfig& config, const Target& target, int64_t world_size, int32_t stage,
                        std::optional<int64_t> room) {
  return choices_with(config, target, choose_units(config, target, world_size, stage, room));
}

StepPlan plan_rank(const RunConfig& config, const Target& target, int64_t world_size, int64_t rank) {
  const int32_t stage = make_mesh(config, world_size).stage_of(rank);
  return plan_step(config, target, choose_step(config, target, world_size, stage), world_size, rank);
}

}  // namespace gptrain::fit
