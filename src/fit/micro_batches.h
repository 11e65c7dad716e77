// Configs with fewer micro-batches, whose plans tell what a step of all of them takes.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace gptrain {

// The config with that number of micro-batches in a step.
RunConfig with_micro_batches(RunConfig config, int64_t micro_batches);
// With two micro-batches: passes of the second have the usual cost, as weights are prepared in the first.
RunConfig with_few_micro_batches(RunConfig config);
// With only as many micro-batches as change the memory of a rank and the choices for it. Without a pipeline nothing of a
// micro-batch outlives it, so all later ones have the places of earlier ones (schedule/allocator.h).
RunConfig with_enough_micro_batches(RunConfig config);

}  // namespace gptrain
