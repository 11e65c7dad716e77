// Runs that continue with however many ranks are available (parallel.elastic).
#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"

namespace gptrain::inline config {

// Returns how many of `ranks`, for which the config was loaded, train. With parallel.elastic this is the largest number
// over which batch.global divides, and the others idle; without it all train. Returns `ranks` if they are fewer than
// one model replica needs; no mesh can be made of them.
int64_t training_ranks(const StepConfig& config, int64_t ranks);

// Returns a line that says which of the `ranks` that were started train and which idle; empty without parallel.elastic.
std::string elastic_line(const StepConfig& config, int64_t ranks);

// Returns the differences in layout between the saved run and `config` on `ranks` ranks that train: "data ranks 4 -> 3,
// batch.accumulation 3 -> 4; batch.global stays 24". Empty if there are none.
std::string layout_changes(const StepConfig& saved, int64_t saved_ranks, const StepConfig& config, int64_t ranks);

}  // namespace gptrain::config
