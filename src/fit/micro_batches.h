// Configs with fewer micro-batches, whose plans are quick and show the time or memory of the whole step. Micro-batches
// keep their size: the global batch shrinks with their number.
#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace gptrain::inline fit {

// Returns the config with `micro_batches` micro-batches in a step. REQUIRES: at least 1.
RunConfig with_micro_batches(RunConfig config, int64_t micro_batches);
// Returns the config with two micro-batches, for times: the second has the usual cost, the first also prepares weights.
RunConfig with_few_micro_batches(RunConfig config);
// Returns the config with fewer micro-batches, but exactly the same memory and choices. Without a pipeline no buffer
// outlives its micro-batch, so later micro-batches reuse the offsets of earlier ones (schedule/allocator.h), and
// MicroBatchUploads::most_retained of them are enough. With a pipeline: returns the config unchanged.
RunConfig with_enough_micro_batches(RunConfig config);
// Returns the config with at most three micro-batches for each stage. Every order of passes except GPipe's then has as
// many in flight as with all micro-batches; for GPipe, and without a pipeline, the result is with_enough_micro_batches.
// The memory is nearly that of the whole step, but not always equal: thousands of micro-batches may leave other gaps
// between buffers.
RunConfig with_micro_batches_of_peak(RunConfig config);

}  // namespace gptrain::fit
