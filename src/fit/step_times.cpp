#include "fit/step_times.h"

#include "fit/choose_step.h"
#include "fit/micro_batches.h"
#include "fit/nominal_times.h"
#include "fit/offload_plan.h"
#include "mesh/mesh.h"
#include "step/plan_step.h"

namespace gptrain::inline fit {

double nominal_step_seconds(const PlanCase& run, int32_t stage) {
  const auto& [config, target, world_size] = run;
  // The choices are those of the whole step: with fewer micro-batches in flight more activations might be kept.
  const StepChoices choices = choose_step(run, stage);
  const RunConfig few = with_few_micro_batches(config);
  const int64_t rank = make_mesh(config, world_size).first_rank_of_stage(stage);
  const StepPlan plan = plan_step({few, target, world_size}, choices, rank);
  const PassSeconds seconds = nominal_pass_seconds(plan, target);
  const Program& training = *plan.design->training;
  const PlayedPasses played = play_passes(training.schedule, training.bytes, target, [&](const Action& action) {
    const auto found = seconds.find({action.kind, action.unit});
    return found == seconds.end() ? 0 : found->second;
  });
  double update = 0;
  for (const LoggedAction& action : plan.log.actions) {
    if (action.kind == ActionKind::update) update += nominal_pass_seconds(plan.log.blocks[action.block], target);
  }
  const auto share = static_cast<double>(config.batch.accumulation) / static_cast<double>(few.batch.accumulation);
  return played.seconds * share + update;
}

}  // namespace gptrain::fit
