// Configs with fewer micro-batches, whose plans are quick and show the time or memory of the whole step.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace gptrain::inline fit {

// Returns the config with `micro_batches` micro-batches in a step, and a global batch to match.
RunConfig with_micro_batches(RunConfig config, int64_t micro_batches);
// Returns the config with two micro-batches. The second has the usual cost; the first also prepares weights.
RunConfig with_few_micro_batches(RunConfig config);
// Returns the config with fewer micro-batches if that gives the same memory and choices. Without a pipeline no buffer
// outlives its micro-batch, so later ones reuse the offsets of earlier ones (schedule/allocator.h).
RunConfig with_enough_micro_batches(RunConfig config);
// Returns the config with at most three micro-batches for each stage, with which every order of passes but GPipe's has
// as many in flight as with all. Later ones of thousands of micro-batches may leave other gaps between buffers, so that
// the memory of all is nearly the same, not always equal.
RunConfig with_micro_batches_of_peak(RunConfig config);

}  // namespace gptrain::fit
