// What no single field can tell: derived values, and the rules between keys.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "config/faults.h"
#include "config/run_config.h"

namespace gptrain {

// `given`: the paths that the file or an override sets. Fills in what was not given, adds the faults between keys, and
// sets keys that have no effect to their defaults; the batch is settled for `world_size` ranks, or with parallel.elastic
// for the most of them over which it divides. Keys that `faults` already concerns take no part.
void settle(RunConfig& config, const std::set<std::string>& given, int64_t world_size, Faults& faults);

}  // namespace gptrain
