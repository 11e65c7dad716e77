#include "fit/disk_units.h"

#include <algorithm>
#include <cmath>

#include "fit/fitted_places.h"
#include "fit/micro_batches.h"
#include "fit/nominal_times.h"

namespace gptrain::inline fit {
namespace {

// Returns the number of units that keep the drives busy.
int64_t wanted_units(const PlanCase& run, int32_t stage, const StepChoices& choices) {
  const auto& [config, target, world_size] = run;
  const RunConfig few = with_few_micro_batches(config);
  const StepPlan plan =
      plan_step({few, target, world_size}, choices, make_mesh(config, world_size).first_rank_of_stage(stage));
  const auto num_drives = static_cast<double>(config.memory.disk_folders().size());
  const auto share = static_cast<double>(config.batch.accumulation) / static_cast<double>(few.batch.accumulation);
  double resting = 0, updating = 0;  // seconds of the drives: beside passes, and for the state
  int64_t units = 0;
  for (const LoggedAction& action : plan.log.actions) {
    const EventBlock& events = plan.log.blocks[action.block];
    const double seconds = nominal_disk_seconds(events) / num_drives;
    if (action.kind != ActionKind::update) {
      resting += share * (nominal_pass_seconds(events, target) - seconds);
    } else if (seconds > 0) {
      updating += seconds;
      ++units;
    }
  }
  if (units == 0) return 0;
  return std::llround(std::ceil(static_cast<double>(units) * std::clamp(resting / updating, 0.0, 1.0)));
}

}  // namespace

int64_t busy_disk_units(const PlanCase& run, int32_t stage, const StepChoices& choices) {
  int64_t fitting = choices.landed_units, too_many = wanted_units(run, stage, choices) + 1;
  StepChoices tried = choices;
  while (too_many - fitting > 1) {
    // All that are wanted often fit.
    tried.landed_units = tried.landed_units == choices.landed_units ? too_many - 1 : (fitting + too_many) / 2;
    (fits_memory(run, stage, tried) ? fitting : too_many) = tried.landed_units;
  }
  return fitting;
}

}  // namespace gptrain::fit
