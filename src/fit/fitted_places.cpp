#include "fit/fitted_places.h"

#include <algorithm>
#include <vector>

#include "fit/fixed_choices.h"
#include "fit/micro_batches.h"

namespace gptrain::inline fit {
namespace {

// Returns the section with the state of the first `at_home` of `num_units` units in memory.
MemoryConfig with_units_at_home(MemoryConfig memory, int64_t at_home, int64_t num_units) {
  memory.offload_optimizer = at_home < num_units ? StatePlace::disk : StatePlace::none;
  memory.offload_parameters = StatePlace::none;
  // Half a unit more, so that rounding does not change the number.
  memory.offload_optimizer_share =
      at_home > 0 ? 1 - (static_cast<double>(at_home) + 0.5) / static_cast<double>(num_units) : 1;
  return memory;
}

bool fits(const PlanCase& run, int32_t stage, const MemoryConfig& memory, const UnitChoices& units) {
  RunConfig config = with_enough_micro_batches(run.config);
  config.memory = memory;
  const Mesh mesh = make_mesh(config, run.world_size);
  const int64_t tensor = mesh.size(MeshAxis::tensor);
  const StepChoices choices = choices_with(memory, run.target, units);
  // The first tensor rank has the biases and positions, the last the padding of the vocabulary.
  for (const int64_t tensor_rank : {int64_t{0}, tensor / 2, tensor - 1}) {
    if (tensor_rank > 0 && tensor == 1) continue;
    const StepPlan plan =
        plan_step({config, run.target, run.world_size}, choices, mesh.first_rank_of_stage(stage, tensor_rank));
    if (plan.memory().arenas.total() > run.target.bytes_of_rank()) return false;
  }
  return true;
}

}  // namespace

MemoryConfig fitted_places(const PlanCase& run, int32_t stage, const UnitChoices& units) {
  const MemoryConfig& memory = run.config.memory;
  if (!memory.fits_places()) return memory;
  const auto num_units = static_cast<int64_t>(units.size());
  const auto with = [&](int64_t at_home) { return with_units_at_home(memory, at_home, num_units); };
  if (fits(run, stage, with(num_units), units)) return with(num_units);
  // The landing area has room for the largest units on disk, so the embedding may take more there than at home.
  int64_t fitting = 0, too_many = num_units;
  if (!fits(run, stage, with(0), units) && !fits(run, stage, with(++fitting), units)) {
    MemoryConfig least = with(0);
    if (memory.offload_parameters == StatePlace::fit) least.offload_parameters = StatePlace::disk;
    return least;
  }
  while (too_many - fitting > 1) {
    const int64_t middle = (fitting + too_many) / 2;
    (fits(run, stage, with(middle), units) ? fitting : too_many) = middle;
  }
  return with(fitting);
}

}  // namespace gptrain::fit
