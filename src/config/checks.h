// Derived values, and rules that involve several keys.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "config/faults.h"
#include "config/run_config.h"

namespace gptrain::inline config {

// Fills in values that were not given, adds the faults of rules between keys, and resets keys without effect to their
// defaults. `given`: paths set by the file or an override. The batch is derived for `world_size` ranks, or with
// parallel.elastic for the largest number of them that divides it. Rules skip keys that already have a fault.
void resolve(RunConfig& config, const std::set<std::string>& given, int64_t world_size, Faults& faults);

}  // namespace gptrain::config
