// Runs that go on with the ranks that are there (parallel.elastic).
#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"

namespace gptrain {

// Of `ranks` for which the config was loaded, those that train. With parallel.elastic they are the most over which
// batch.global divides, and the others idle; else all. Where there are fewer than one model takes: `ranks`, of which
// no mesh is made.
int64_t training_ranks(const RunConfig& config, int64_t ranks);

// Who trains and who idles, as a line; empty without parallel.elastic.
std::string elastic_line(const RunConfig& config, int64_t ranks);

// What a run that goes on as `config`, on `ranks` that train, has otherwise than one of `saved_ranks` with the config
// `saved`: "data ranks 4 -> 3, batch.accumulation 3 -> 4; batch.global stays 24". Empty if nothing.
std::string layout_changes(const RunConfig& saved, int64_t saved_ranks, const RunConfig& config, int64_t ranks);

}  // namespace gptrain
